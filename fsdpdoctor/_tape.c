/* Hooks that write down that they ran, and nothing else.

A hook in Python costs a training step some 15 us where the caches hold others' code
and data, as after each blocking collective; here it is well below one. What a row
means is said later by `recorder.tape.replay`, for many rows at once.

Nothing of the interpreter is called in a hook but attributes of FSDP2's own objects,
and the callables that a `Tape` was made with, where something is seen for the first
time. An error of ours turns the tape off, is kept in `error`, and the call goes on as
without us; what those callables raise is the script's (a signal handler's) and passes.
*/

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>
#include <time.h>

#define TAPE_VERSION 1
#define MOST_ROWS (1 << 20)
#define MOST_ARGUMENTS 24

/* What a hook is put around. */
enum {
    OF_GROUP,    /* a method of FSDPParamGroup */
    OF_PREFETCH, /* _prefetch_unshard(group, pass_type) */
    OF_GATHER,   /* foreach_all_gather(params, group, async_op, ..., AllGather) */
    OF_COPY_OUT, /* foreach_all_gather_copy_out(result, params, group) */
    OF_REDUCE,   /* foreach_reduce(params, ..., ReduceScatter) */
    /* Of FSDPState: rarely anything for us, and then it is the live hook's. */
    OF_ROOT_FORWARD,
    OF_ROOT_ENDS,
    OF_BACKWARD,
    OF_CAST,
    OF_ROOT_ALONE, /* _root_pre_forward, where nobody asks for inner states */
    OF_COUNT,      /* of a function that issues a collective: that it does */
    OF_METHOD, /* of ProcessGroup: FSDP2's own collectives are seen by other hooks */
    SHAPES
};

/* What was so, by bit. The training state is above these. */
enum {
    GATHERS = 1,
    UNSHARDED = 2,
    BACKWARD = 4,
    FAILED = 8,
    PARTIAL = 16,
    ONE_MODULE = 32,
    REDUCES = 64,
    ALL_REDUCES = 128,
    RESHARDS = 256,
    ASYNC = 512,
    FORWARD_PREFETCH = 1024,
    WAITS = 2048,
    NO_RESULT = 4096,
    STATE_SHIFT = 16,
    OTHER_STATE = 4
};

/* Rows of one call, after its own code. */
enum { BEGINS, ENDS, CALLS, RETURNED, ALLOCATES };

typedef struct {
    int32_t code, facts;
    int64_t call, time_ns, a, b;
    PyObject *subject; /* owned, or NULL */
} Row;

typedef struct {
    PyObject_HEAD
    Row *rows;
    Py_ssize_t count, room;
    int64_t calls, cost_ns;
    char off;
    PyObject *error;
    /* Given by the recorder. */
    PyObject *unit_of, *units_of_params, *owner, *indices, *index_of, *graph_task;
    PyObject *states, *unsharded, *compiler, *recording, *kept;
    PyObject *tensor, *modes, *size_of;
} Tape;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Tape *tape;
    PyObject *original, *live, *swapped, *there, *dict, *weak;
    int code, shape, at;
    int group_at;
    char asks_modules, asks_flags, asks_size, aside;
} Hook;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Tape *tape;
    PyObject *inner;
    int64_t call;
    int code, reduces;
} Proxy;

static PyTypeObject TapeType, HookType, ProxyType;

#define NAMES(X)                                                                     \
    X(_fsdpdoctor_unit) X(owner) X(group) X(_all_gather_result) X(_sharded_state)    \
    X(_training_state) X(modules) X(reduce_grads) X(all_reduce_grads)                \
    X(reshard_after_backward) X(_is_compiling_flag) X(own_collective)                \
    X(all_gather_work) X(wait) X(output_tensor) X(output) X(input_tensor) X(input)   \
    X(tensor) X(allocate) X(_state_ctx) X(iter_forward_root) X(forward)              \
    X(post_backward_final_callback_queued) X(__qualname__) X(nbytes) \
    X(size)
#define DECLARE(name) static PyObject *s_##name;
NAMES(DECLARE)

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The tape */

static void ours_failed(Tape *tape)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (type == NULL)
        return;
    PyErr_NormalizeException(&type, &value, &trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    tape->off = 1;
    if (tape->error == NULL)
        tape->error = value;
    else
        Py_XDECREF(value);
}

/* Steals the subject. */
static void put(Tape *tape, int code, int64_t call, int64_t time_ns, int facts,
                PyObject *subject, int64_t a, int64_t b)
{
    if (tape->count == tape->room) {
        Py_ssize_t room = tape->room ? 2 * tape->room : 4096;
        Row *rows = NULL;
        if (room <= MOST_ROWS)
            rows = PyMem_Realloc(tape->rows, (size_t)room * sizeof(Row));
        if (rows == NULL) {
            Py_XDECREF(subject);
            PyErr_SetString(PyExc_MemoryError, "the tape of hooks is full");
            ours_failed(tape);
            return;
        }
        tape->rows = rows;
        tape->room = room;
    }
    tape->rows[tape->count++] =
        (Row){code, facts, call, time_ns, a, b, subject};
}

static int is_compiling(Tape *tape)
{
    return PyDict_GetItem(tape->compiler, s__is_compiling_flag) == Py_True;
}

/* 1, 0, or -1 with an error set. */
static int in_backward(Tape *tape)
{
    PyObject *task = PyObject_CallNoArgs(tape->graph_task);
    if (task == NULL)
        return -1;
    long number = PyLong_AsLong(task);
    Py_DECREF(task);
    if (number == -1 && PyErr_Occurred())
        return -1;
    return number != -1;
}

static int is_true(PyObject *object, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL)
        return -1;
    int truth = PyObject_IsTrue(value);
    Py_DECREF(value);
    return truth;
}

/* What is so of a parameter group; -1 with an error set. */
static int group_facts(Tape *tape, PyObject *group)
{
    int facts = 0;
    PyObject *value = PyObject_GetAttr(group, s__all_gather_result);
    if (value == NULL)
        return -1;
    if (value != Py_None)
        facts |= GATHERS;
    Py_DECREF(value);
    if ((value = PyObject_GetAttr(group, s__sharded_state)) == NULL)
        return -1;
    if (value == tape->unsharded)
        facts |= UNSHARDED;
    Py_DECREF(value);
    if ((value = PyObject_GetAttr(group, s__training_state)) == NULL)
        return -1;
    int state = 0;
    while (state < OTHER_STATE && PyTuple_GET_ITEM(tape->states, state) != value)
        state++;
    Py_DECREF(value);
    int backward = in_backward(tape);
    if (backward < 0)
        return -1;
    return facts | (backward ? BACKWARD : 0) | state << STATE_SHIFT;
}

/* A group's unit, a new reference. NULL without an error: the recorder has none;
NULL with one: it is theirs. */
static PyObject *unit_of_group(Tape *tape, PyObject *group)
{
    PyObject *unit = PyObject_GetAttr(group, s__fsdpdoctor_unit);
    if (unit != NULL) {
        PyObject *owner = PyObject_GetAttr(unit, s_owner);
        if (owner == tape->owner) {
            Py_DECREF(owner);
            return unit;
        }
        Py_XDECREF(owner);
        Py_DECREF(unit);
    }
    PyErr_Clear();
    unit = PyObject_CallOneArg(tape->unit_of, group);
    if (unit == Py_None)
        Py_CLEAR(unit);
    return unit;
}

/* The same of a list of FSDPParams. An error is ours. */
static PyObject *unit_of_params(Tape *tape, PyObject *params)
{
    PyObject *first = PySequence_GetItem(params, 0);
    if (first == NULL)
        return NULL;
    PyObject *key = PyLong_FromVoidPtr(first);
    Py_DECREF(first);
    if (key == NULL)
        return NULL;
    PyObject *unit = PyDict_GetItemWithError(tape->units_of_params, key);
    if (unit == NULL && !PyErr_Occurred())
        PyErr_SetObject(PyExc_KeyError, key);
    Py_DECREF(key);
    Py_XINCREF(unit);
    return unit;
}

/* A process group's number; -2 with an error that is theirs. */
static int64_t index_of(Tape *tape, PyObject *group)
{
    if (group == Py_None)
        return -1;
    PyObject *index = PyDict_GetItemWithError(tape->indices, group);
    if (index != NULL)
        Py_INCREF(index);
    else {
        PyErr_Clear();
        index = PyObject_CallOneArg(tape->index_of, group);
        if (index == NULL)
            return -2;
    }
    int64_t number = index == Py_None ? -1 : PyLong_AsLongLong(index);
    Py_DECREF(index);
    return number;
}

/* The bytes of a tensor, as an integer or None: of torch's own class by its own
property, where no mode of the script's would be asked. NULL with an error of theirs. */
static PyObject *bytes_of(Tape *tape, PyObject *tensor)
{
    if ((PyObject *)Py_TYPE(tensor) == tape->tensor) {
        PyObject *modes = PyObject_CallNoArgs(tape->modes);
        int none = modes != NULL && PyLong_AsLong(modes) == 0;
        Py_XDECREF(modes);
        PyObject *bytes = none ? PyObject_GetAttr(tensor, s_nbytes) : NULL;
        if (bytes != NULL)
            return bytes;
        PyErr_Clear();
    }
    return PyObject_CallOneArg(tape->size_of, tensor);
}

static PyObject *argument(PyObject *const *args, Py_ssize_t count, PyObject *names,
                          Py_ssize_t at, PyObject *const *wanted)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    for (; *wanted != NULL; wanted++)
        for (Py_ssize_t i = 0; i < named; i++)
            if (PyTuple_GET_ITEM(names, i) == *wanted
                || PyUnicode_Compare(PyTuple_GET_ITEM(names, i), *wanted) == 0)
                return args[count + i];
    if (at < count)
        return args[at];
    PyErr_SetString(PyExc_IndexError, "a collective was called in another way");
    return NULL;
}

/* A collective, as FSDP2 calls it in place of the AllGather or ReduceScatter */

static PyObject *proxy_call(PyObject *self, PyObject *const *args, size_t flags,
                            PyObject *names)
{
    Proxy *proxy = (Proxy *)self;
    Tape *tape = proxy->tape;
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (tape->off)
        return PyObject_Vectorcall(proxy->inner, args, flags, names);
    int64_t entered = now_ns(), group = -1, size = -1;
    PyObject *by_output[] = {s_output_tensor, s_output, NULL};
    PyObject *by_input[] = {s_input_tensor, s_input, s_tensor, NULL};
    PyObject *by_group[] = {s_group, NULL};
    int code = proxy->code, reduces = proxy->reduces;
    PyObject *process_group = argument(args, count, names, 2, by_group);
    PyObject *tensor = process_group == NULL ? NULL
        : reduces ? argument(args, count, names, 1, by_input)
                  : argument(args, count, names, 0, by_output);
    if (tensor == NULL) {
        ours_failed(tape);
        return PyObject_Vectorcall(proxy->inner, args, flags, names);
    }
    if ((group = index_of(tape, process_group)) == -2)
        return NULL;
    PyObject *bytes = bytes_of(tape, tensor);
    if (bytes == NULL)
        return NULL;
    if (bytes != Py_None)
        size = PyLong_AsLongLong(bytes);
    Py_DECREF(bytes);
    if (PyObject_SetAttr(tape->recording, s_own_collective, Py_True) < 0)
        ours_failed(tape);
    int64_t begins = now_ns();
    put(tape, code + CALLS, proxy->call, begins, 0, NULL, group, size);
    tape->cost_ns += begins - entered;
    PyObject *result = PyObject_Vectorcall(proxy->inner, args, flags, names);
    int64_t ended = now_ns();
    PyObject *type, *value, *trace, *kept = NULL;
    PyErr_Fetch(&type, &value, &trace);
    if (PyObject_SetAttr(tape->recording, s_own_collective, Py_False) < 0)
        ours_failed(tape);
    if (result != NULL && result != Py_None && !reduces) {
        kept = PyObject_CallOneArg(tape->kept, result);
        if (kept == NULL) { /* theirs: as if it had struck a line later */
            Py_DECREF(result);
            return NULL;
        }
    }
    put(tape, code + RETURNED, proxy->call, ended, result == NULL ? FAILED : 0, kept,
        group, size);
    tape->cost_ns += now_ns() - ended;
    PyErr_Restore(type, value, trace);
    return result;
}

static PyObject *proxy_getattro(PyObject *self, PyObject *name)
{
    Proxy *proxy = (Proxy *)self;
    if (!proxy->tape->off && proxy->reduces
        && PyUnicode_Compare(name, s_allocate) == 0)
        put(proxy->tape, proxy->code + ALLOCATES, proxy->call, now_ns(), 0, NULL, -1,
            -1);
    return PyObject_GetAttr(proxy->inner, name);
}

static int proxy_setattro(PyObject *self, PyObject *name, PyObject *value)
{
    return PyObject_SetAttr(((Proxy *)self)->inner, name, value);
}

static PyObject *proxy_new(Tape *tape, PyObject *inner, int code, int reduces,
                           int64_t call)
{
    Proxy *proxy = PyObject_GC_New(Proxy, &ProxyType);
    if (proxy == NULL)
        return NULL;
    proxy->vectorcall = proxy_call;
    proxy->tape = tape;
    Py_INCREF(tape);
    proxy->inner = inner;
    Py_INCREF(inner);
    proxy->code = code;
    proxy->reduces = reduces;
    proxy->call = call;
    PyObject_GC_Track(proxy);
    return (PyObject *)proxy;
}

static int proxy_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Proxy *)self)->tape);
    Py_VISIT(((Proxy *)self)->inner);
    return 0;
}

static void proxy_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(((Proxy *)self)->tape);
    Py_XDECREF(((Proxy *)self)->inner);
    PyObject_GC_Del(self);
}

static PyTypeObject ProxyType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "fsdpdoctor._tape.Proxy",
    .tp_basicsize = sizeof(Proxy),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall_offset = offsetof(Proxy, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_getattro = proxy_getattro,
    .tp_setattro = proxy_setattro,
    .tp_traverse = proxy_traverse,
    .tp_dealloc = proxy_dealloc,
};

/* Hooks */

typedef struct {
    PyObject *const *args;
    size_t flags;
    PyObject *names;
    Py_ssize_t count;
} Given;

static PyObject *original(Hook *hook, const Given *given)
{
    return PyObject_Vectorcall(hook->original, given->args, given->flags,
                               given->names);
}

/* The original, between two rows of one subject, which is stolen; the end has the facts
of the group as it is then, or none where that is NULL. */
static PyObject *between(Hook *hook, const Given *given, int64_t entered, int64_t call,
                         int facts, PyObject *subject, PyObject *group, int64_t a,
                         int64_t b)
{
    Tape *tape = hook->tape;
    Py_XINCREF(subject);
    int64_t begins = now_ns();
    put(tape, hook->code + BEGINS, call, begins, facts, subject, a, b);
    tape->cost_ns += begins - entered;
    PyObject *result = original(hook, given);
    int64_t ended = now_ns();
    if (tape->off) {
        Py_XDECREF(subject);
        return result;
    }
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    int after = 0;
    if (group != NULL && (after = group_facts(tape, group)) < 0) {
        ours_failed(tape);
        Py_XDECREF(subject);
    }
    else
        put(tape, hook->code + ENDS, call, ended,
            after | (result == NULL ? FAILED : 0) | (result == Py_None ? NO_RESULT : 0),
            subject, a, b);
    tape->cost_ns += now_ns() - ended;
    PyErr_Restore(type, value, trace);
    return result;
}

static PyObject *without_us(Hook *hook, const Given *given)
{
    ours_failed(hook->tape);
    return original(hook, given);
}

static PyObject *of_group(Hook *hook, const Given *given)
{
    Tape *tape = hook->tape;
    int64_t entered = now_ns();
    PyObject *group = given->args[0];
    PyObject *unit = unit_of_group(tape, group);
    if (unit == NULL)
        return PyErr_Occurred() ? NULL : original(hook, given);
    int facts = group_facts(tape, group);
    if (facts >= 0 && given->count > 1 && given->args[1] == Py_None)
        facts |= PARTIAL;
    if (facts >= 0 && hook->asks_modules) {
        PyObject *modules = PyObject_GetAttr(group, s_modules);
        Py_ssize_t count = modules == NULL ? -1 : PyObject_Size(modules);
        Py_XDECREF(modules);
        facts = count < 0 ? -1 : count == 1 ? facts | ONE_MODULE : facts;
    }
    if (facts >= 0 && hook->asks_flags) {
        int one = is_true(group, s_reduce_grads);
        int all = one < 0 ? -1 : is_true(group, s_all_reduce_grads);
        int free = all < 0 ? -1 : is_true(group, s_reshard_after_backward);
        facts = free < 0 ? -1
                         : facts | (one ? REDUCES : 0) | (all ? ALL_REDUCES : 0)
                               | (free ? RESHARDS : 0);
    }
    if (facts < 0) {
        Py_DECREF(unit);
        return without_us(hook, given);
    }
    return between(hook, given, entered, ++tape->calls, facts, unit, group, -1, -1);
}

static PyObject *of_prefetch(Hook *hook, const Given *given)
{
    int64_t entered = now_ns();
    int facts = 0;
    if (given->count > 1 && PyUnicode_Check(given->args[1])
        && PyUnicode_Compare(given->args[1], s_forward) == 0)
        facts = FORWARD_PREFETCH;
    return between(hook, given, entered, ++hook->tape->calls, facts, NULL, NULL, -1,
                   -1);
}

/* The call with one argument in another's place. */
static PyObject *swapping(Hook *hook, const Given *given, int64_t entered, int facts,
                          PyObject *unit, int64_t a, int64_t b, int reduces)
{
    Tape *tape = hook->tape;
    Py_ssize_t named = given->names == NULL ? 0 : PyTuple_GET_SIZE(given->names);
    Py_ssize_t all = given->count + named;
    int64_t call = ++tape->calls;
    if (hook->at == -1) {
        hook->at = -2; /* there is none */
        for (Py_ssize_t i = 0; i < given->count; i++) {
            int is = hook->swapped == Py_None
                ? 0 : PyObject_IsInstance(given->args[i], hook->swapped);
            if (is < 0) {
                hook->at = -1; /* not known yet */
                Py_DECREF(unit);
                return without_us(hook, given);
            }
            if (is) {
                hook->at = (int)i;
                break;
            }
        }
    }
    if (hook->at < 0 || hook->at >= given->count || all > MOST_ARGUMENTS)
        return between(hook, given, entered, call, facts, unit, NULL, a, b);
    PyObject *args[MOST_ARGUMENTS];
    for (Py_ssize_t i = 0; i < all; i++)
        args[i] = given->args[i];
    PyObject *proxy = proxy_new(tape, args[hook->at], hook->code, reduces, call);
    if (proxy == NULL) {
        Py_DECREF(unit);
        return without_us(hook, given);
    }
    args[hook->at] = proxy;
    Given swapped = {args, (size_t)given->count, given->names, given->count};
    PyObject *result =
        between(hook, &swapped, entered, call, facts, unit, NULL, a, b);
    Py_DECREF(proxy);
    return result;
}

static PyObject *of_gather(Hook *hook, const Given *given)
{
    Tape *tape = hook->tape;
    int64_t entered = now_ns();
    if (given->count < 3) {
        PyErr_SetString(PyExc_IndexError, "all-gathers are issued in another way");
        return without_us(hook, given);
    }
    PyObject *unit = unit_of_params(tape, given->args[0]);
    if (unit == NULL)
        return without_us(hook, given);
    PyObject *reference = PyObject_GetAttr(unit, s_group);
    PyObject *group = reference == NULL ? NULL : PyObject_CallNoArgs(reference);
    Py_XDECREF(reference);
    int facts = group == NULL ? -1 : group_facts(tape, group);
    Py_XDECREF(group);
    int is_async = facts < 0 ? -1 : PyObject_IsTrue(given->args[2]);
    if (is_async < 0) {
        Py_DECREF(unit);
        return without_us(hook, given);
    }
    int64_t index = index_of(tape, given->args[1]);
    if (index == -2) {
        Py_DECREF(unit);
        return NULL;
    }
    return swapping(hook, given, entered, facts | (is_async ? ASYNC : 0), unit, index,
                    (int64_t)PyThread_get_thread_ident(), 0);
}

static PyObject *of_reduce(Hook *hook, const Given *given)
{
    int64_t entered = now_ns();
    if (given->count < 1) {
        PyErr_SetString(PyExc_IndexError, "reductions are issued in another way");
        return without_us(hook, given);
    }
    PyObject *unit = unit_of_params(hook->tape, given->args[0]);
    if (unit == NULL)
        return without_us(hook, given);
    return swapping(hook, given, entered, 0, unit, -1, -1, 1);
}

/* FSDP2 waits in it for the gather; we do, before it: [Note: Bracketed waits]. */
static PyObject *of_copy_out(Hook *hook, const Given *given)
{
    Tape *tape = hook->tape;
    int64_t entered = now_ns();
    if (given->count < 2) {
        PyErr_SetString(PyExc_IndexError, "all-gathers are copied in another way");
        return without_us(hook, given);
    }
    PyObject *unit = unit_of_params(tape, given->args[1]);
    PyObject *work =
        unit == NULL ? NULL : PyObject_GetAttr(given->args[0], s_all_gather_work);
    if (work == NULL) {
        Py_XDECREF(unit);
        return without_us(hook, given);
    }
    int64_t call = ++tape->calls;
    PyObject *wait = work == Py_None ? NULL : PyObject_GetAttr(work, s_wait);
    Py_DECREF(work);
    int facts = 0;
    if (wait == NULL)
        PyErr_Clear();
    else {
        facts = WAITS;
        int64_t begins = now_ns();
        Py_INCREF(unit);
        put(tape, hook->code + CALLS, call, begins, facts, unit, -1, -1);
        tape->cost_ns += begins - entered;
        PyObject *waited = PyObject_CallNoArgs(wait);
        Py_DECREF(wait);
        if (waited == NULL) { /* as FSDP2's own wait would raise */
            Py_DECREF(unit);
            return NULL;
        }
        Py_DECREF(waited);
        entered = now_ns();
        Py_INCREF(unit);
        put(tape, hook->code + RETURNED, call, entered, facts, unit, -1, -1);
    }
    return between(hook, given, entered, call, facts, unit, NULL, -1, -1);
}

/* foreach_all_gather and foreach_reduce, where only their collectives are counted. */
static PyObject *of_count(Hook *hook, const Given *given)
{
    Tape *tape = hook->tape;
    int64_t entered = now_ns();
    if (given->count <= hook->group_at) {
        PyErr_SetString(PyExc_IndexError, "collectives are issued in another way");
        return without_us(hook, given);
    }
    PyObject *group = given->args[hook->group_at];
    if (hook->asks_size) { /* one rank, or no shard group: none is issued */
        PyObject *size = group == Py_None ? PyLong_FromLong(1)
                                          : PyObject_CallMethodNoArgs(group, s_size);
        long ranks = size == NULL ? -1 : PyLong_AsLong(size);
        Py_XDECREF(size);
        if (ranks == -1)
            return without_us(hook, given);
        if (ranks == 1)
            return original(hook, given);
    }
    PyObject *unit = unit_of_params(tape, given->args[0]);
    if (unit == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_KeyError))
            return without_us(hook, given);
        PyErr_Clear(); /* gathered by hand before its first forward */
    }
    int backward = in_backward(tape);
    int64_t index = backward < 0 ? -1 : index_of(tape, group);
    if (backward < 0 || index == -2) {
        Py_XDECREF(unit);
        return backward < 0 ? without_us(hook, given) : NULL;
    }
    int64_t now = now_ns();
    put(tape, hook->code, ++tape->calls, now, backward ? BACKWARD : 0, unit, index, -1);
    tape->cost_ns += now - entered;
    return original(hook, given);
}

static PyObject *by_live(Hook *hook, const Given *given)
{
    return PyObject_Vectorcall(hook->live, given->args, given->flags, given->names);
}

/* A row of a state that is referred to weakly, and the original. */
static PyObject *noting(Hook *hook, const Given *given)
{
    PyObject *reference = PyWeakref_NewRef(given->args[0], NULL);
    if (reference == NULL)
        return without_us(hook, given);
    int64_t now = now_ns();
    put(hook->tape, hook->code, ++hook->tape->calls, now, 0, reference, -1, -1);
    hook->tape->cost_ns += now_ns() - now;
    return original(hook, given);
}

static PyObject *of_state(Hook *hook, const Given *given)
{
    Tape *tape = hook->tape;
    PyObject *state = given->args[0];
    PyObject *context = PyObject_GetAttr(state, s__state_ctx);
    PyObject *asked = context == NULL ? NULL
        : PyObject_GetAttr(context, hook->shape == OF_BACKWARD
                               ? s_post_backward_final_callback_queued
                               : s_iter_forward_root);
    Py_XDECREF(context);
    if (asked == NULL) {
        PyErr_Clear(); /* as the live hook finds it */
        return by_live(hook, given);
    }
    int live = 0, notes = 0;
    switch (hook->shape) {
    case OF_ROOT_FORWARD:
        live = asked == Py_None || asked == state;
        notes = !live;
        break;
    case OF_ROOT_ALONE:
        live = asked == Py_None || asked == state;
        break;
    case OF_ROOT_ENDS:
        live = asked == state;
        break;
    case OF_BACKWARD:
        live = asked != Py_True;
        notes = !live;
        break;
    default: { /* OF_CAST */
        PyObject *training = PyObject_GetAttr(state, s__training_state);
        live = training == NULL || asked == state
            || training == PyTuple_GET_ITEM(tape->states, 2);
        Py_XDECREF(training);
        PyErr_Clear();
    }
    }
    Py_DECREF(asked);
    return live ? by_live(hook, given)
                : notes ? noting(hook, given) : original(hook, given);
}

/* Whether FSDP2 issues a collective now, whose hooks record it. */
static int is_own(Tape *tape)
{
    PyObject *own = PyObject_GetAttr(tape->recording, s_own_collective);
    if (own == NULL)
        PyErr_Clear();
    Py_XDECREF(own);
    return own == Py_True;
}

static PyObject *hook_call(PyObject *self, PyObject *const *args, size_t flags,
                           PyObject *names)
{
    Hook *hook = (Hook *)self;
    Given given = {args, flags, names, PyVectorcall_NARGS(flags)};
    if (hook->aside)
        return original(hook, &given);
    if (hook->shape == OF_METHOD)
        return is_own(hook->tape) ? original(hook, &given) : by_live(hook, &given);
    if (hook->tape->off || given.count < 1 || is_compiling(hook->tape))
        return original(hook, &given);
    switch (hook->shape) {
    case OF_GROUP:
        return of_group(hook, &given);
    case OF_PREFETCH:
        return of_prefetch(hook, &given);
    case OF_GATHER:
        return of_gather(hook, &given);
    case OF_COPY_OUT:
        return of_copy_out(hook, &given);
    case OF_REDUCE:
        return of_reduce(hook, &given);
    case OF_COUNT:
        return of_count(hook, &given);
    default:
        return of_state(hook, &given);
    }
}

static PyObject *hook_get(PyObject *self, PyObject *object, PyObject *type)
{
    if (object == NULL || object == Py_None) {
        Py_INCREF(self);
        return self;
    }
    return PyMethod_New(self, object);
}

static PyObject *hook_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"tape", "original", "code", "shape", "live", "swapped",
                            "asks_modules", "asks_flags", "asks_size", "group_at",
                            NULL};
    PyObject *tape, *inner, *live = Py_None, *swapped = Py_None;
    int code, shape, modules = 0, flags = 0, size = 0, group_at = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!Oii|OO$pppi", names, &TapeType,
                                     &tape, &inner, &code, &shape, &live, &swapped,
                                     &modules, &flags, &size, &group_at))
        return NULL;
    if (shape < 0 || shape >= SHAPES) {
        PyErr_Format(PyExc_ValueError, "no shape %d", shape);
        return NULL;
    }
    Hook *hook = (Hook *)type->tp_alloc(type, 0);
    if (hook == NULL)
        return NULL;
    hook->vectorcall = hook_call;
    hook->tape = (Tape *)Py_NewRef(tape);
    hook->original = Py_NewRef(inner);
    hook->live = Py_NewRef(live);
    hook->swapped = Py_NewRef(swapped);
    hook->code = code;
    hook->shape = shape;
    hook->at = -1;
    hook->asks_modules = (char)modules;
    hook->asks_flags = (char)flags;
    hook->asks_size = (char)size;
    hook->group_at = group_at;
    return (PyObject *)hook;
}

static PyObject *hook_step_aside(PyObject *self, PyObject *there)
{
    Hook *hook = (Hook *)self;
    hook->aside = 1;
    Py_XSETREF(hook->there, Py_NewRef(there));
    Py_RETURN_NONE;
}

static PyObject *hook_beneath(PyObject *self, PyObject *unused)
{
    Hook *hook = (Hook *)self;
    return Py_NewRef(hook->aside ? hook->there : self);
}

/* As a function: by its name. */
static PyObject *hook_reduce(PyObject *self, PyObject *unused)
{
    return PyObject_GetAttr(self, s___qualname__);
}

static int hook_traverse(PyObject *self, visitproc visit, void *arg)
{
    Hook *hook = (Hook *)self;
    Py_VISIT(hook->tape);
    Py_VISIT(hook->original);
    Py_VISIT(hook->live);
    Py_VISIT(hook->swapped);
    Py_VISIT(hook->there);
    Py_VISIT(hook->dict);
    return 0;
}

static int hook_clear(PyObject *self)
{
    /* What it calls stays: it may be called while it goes away. */
    Hook *hook = (Hook *)self;
    Py_CLEAR(hook->there);
    Py_CLEAR(hook->dict);
    return 0;
}

static void hook_dealloc(PyObject *self)
{
    Hook *hook = (Hook *)self;
    PyObject_GC_UnTrack(self);
    if (hook->weak != NULL)
        PyObject_ClearWeakRefs(self);
    hook_clear(self);
    Py_XDECREF(hook->tape);
    Py_XDECREF(hook->original);
    Py_XDECREF(hook->live);
    Py_XDECREF(hook->swapped);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef hook_methods[] = {
    {"step_aside", hook_step_aside, METH_O,
     "Be nothing but a way to the original, for good; `there` is what it lies on."},
    {"beneath", hook_beneath, METH_NOARGS, "What it lies on, once it is aside."},
    {"__reduce__", hook_reduce, METH_NOARGS, NULL},
    {NULL},
};

/* Whoever asks what stands in FSDP2's class is told of the function that was there:
`isinstance` and `inspect` take it for one, and so does `unittest.mock`, which gives a
method's object to what takes the place of a function alone. */
static PyObject *hook_class(PyObject *self, void *unused)
{
    return Py_NewRef((PyObject *)&PyFunction_Type);
}

static PyObject *hook_said(PyObject *self, void *name)
{
    return PyObject_GetAttrString(((Hook *)self)->original, name);
}

static int hook_say(PyObject *self, PyObject *value, void *name)
{
    return PyObject_SetAttrString(((Hook *)self)->original, name, value);
}

static PyObject *hook_repr(PyObject *self)
{
    PyObject *name = PyObject_GetAttr(self, s___qualname__);
    if (name == NULL)
        return NULL;
    PyObject *said = PyUnicode_FromFormat("<function %S at %p>", name, self);
    Py_DECREF(name);
    return said;
}

#define SAID(name) {name, hook_said, hook_say, NULL, name}
static PyGetSetDef hook_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {"__class__", hook_class, NULL, NULL, NULL},
    SAID("__code__"),
    SAID("__defaults__"),
    SAID("__kwdefaults__"),
    SAID("__globals__"),
    SAID("__closure__"),
    SAID("__builtins__"),
    {NULL},
};

static PyTypeObject HookType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "fsdpdoctor._tape.Hook",
    .tp_basicsize = sizeof(Hook),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL
        | Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall_offset = offsetof(Hook, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_repr = hook_repr,
    .tp_descr_get = hook_get,
    .tp_methods = hook_methods,
    .tp_getset = hook_getset,
    .tp_dictoffset = offsetof(Hook, dict),
    .tp_weaklistoffset = offsetof(Hook, weak),
    .tp_traverse = hook_traverse,
    .tp_clear = hook_clear,
    .tp_dealloc = hook_dealloc,
    .tp_new = hook_new,
};

/* The tape, as Python sees it */

#define FIELDS(X)                                                                    \
    X(unit_of) X(units_of_params) X(owner) X(indices) X(index_of) X(graph_task)      \
    X(states) X(unsharded) X(compiler) X(recording) X(kept) X(tensor) X(modes)       \
    X(size_of)

static PyObject *tape_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
#define NAME(field) #field,
    static char *names[] = {FIELDS(NAME) NULL};
    PyObject *given[14];
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "$OO!OO!OOO!OO!OOOOO", names, &given[0], &PyDict_Type,
            &given[1], &given[2], &PyDict_Type, &given[3], &given[4], &given[5],
            &PyTuple_Type, &given[6], &given[7], &PyDict_Type, &given[8], &given[9],
            &given[10], &given[11], &given[12], &given[13]))
        return NULL;
    if (PyTuple_GET_SIZE(given[6]) != OTHER_STATE) {
        PyErr_SetString(PyExc_ValueError, "four training states were expected");
        return NULL;
    }
    Tape *tape = (Tape *)type->tp_alloc(type, 0);
    if (tape == NULL)
        return NULL;
    int i = 0;
#define KEEP(field) tape->field = Py_NewRef(given[i++]);
    FIELDS(KEEP)
    return (PyObject *)tape;
}

/* All rows so far, as (code, call, time_ns, facts, subject, a, b). */
static PyObject *tape_take(PyObject *self, PyObject *unused)
{
    Tape *tape = (Tape *)self;
    Row *rows = tape->rows;
    Py_ssize_t count = tape->count, room = tape->room;
    /* What is made here may bring on a collection, and that a row. */
    tape->rows = NULL;
    tape->count = tape->room = 0;
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; i < count; i++) {
        Row *row = &rows[i];
        PyObject *subject = row->subject == NULL ? Py_NewRef(Py_None) : row->subject;
        PyObject *made = list == NULL ? NULL
            : Py_BuildValue("(iLLiOLL)", (int)row->code, (long long)row->call,
                            (long long)row->time_ns, (int)row->facts, subject,
                            (long long)row->a, (long long)row->b);
        Py_DECREF(subject);
        if (made == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, made);
    }
    if (tape->rows == NULL) { /* to be filled again */
        tape->rows = rows;
        tape->room = room;
    }
    else
        PyMem_Free(rows);
    return list;
}

static PyObject *tape_take_cost(PyObject *self, PyObject *unused)
{
    Tape *tape = (Tape *)self;
    int64_t cost_ns = tape->cost_ns;
    tape->cost_ns = 0;
    return PyLong_FromLongLong(cost_ns);
}

static PyObject *tape_take_error(PyObject *self, PyObject *unused)
{
    Tape *tape = (Tape *)self;
    PyObject *error = tape->error;
    tape->error = NULL;
    return error == NULL ? Py_NewRef(Py_None) : error;
}

static void forget_rows(Tape *tape)
{
    Row *rows = tape->rows;
    Py_ssize_t count = tape->count;
    tape->rows = NULL;
    tape->count = tape->room = 0;
    for (Py_ssize_t i = 0; i < count; i++)
        Py_XDECREF(rows[i].subject);
    PyMem_Free(rows);
}

static int tape_traverse(PyObject *self, visitproc visit, void *arg)
{
    Tape *tape = (Tape *)self;
    for (Py_ssize_t i = 0; i < tape->count; i++)
        Py_VISIT(tape->rows[i].subject);
    Py_VISIT(tape->error);
#define VISIT(field) Py_VISIT(tape->field);
    FIELDS(VISIT)
    return 0;
}

static int tape_clear(PyObject *self)
{
    /* What hooks ask for stays: one may be called while all this goes away. */
    Tape *tape = (Tape *)self;
    tape->off = 1;
    forget_rows(tape);
    Py_CLEAR(tape->error);
    Py_CLEAR(tape->unit_of);
    Py_CLEAR(tape->index_of);
    return 0;
}

static void tape_dealloc(PyObject *self)
{
    Tape *tape = (Tape *)self;
    PyObject_GC_UnTrack(self);
    tape_clear(self);
#define DROP(field) Py_XDECREF(tape->field);
    FIELDS(DROP)
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef tape_methods[] = {
    {"take", tape_take, METH_NOARGS,
     "Take all rows: (code, call, time_ns, facts, subject, a, b)."},
    {"take_cost", tape_take_cost, METH_NOARGS,
     "The nanoseconds that hooks took since the last call."},
    {"take_error", tape_take_error, METH_NOARGS, "What turned it off; once."},
    {NULL},
};

static PyMemberDef tape_members[] = {
    {"off", T_BOOL, offsetof(Tape, off), 0, "Whether nothing is written any more."},
    {NULL},
};

static Py_ssize_t tape_length(PyObject *self)
{
    Tape *tape = (Tape *)self;
    return tape->count + (tape->error != NULL); /* an error is to be read, too */
}

static PySequenceMethods tape_as_sequence = {.sq_length = tape_length};

static PyTypeObject TapeType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "fsdpdoctor._tape.Tape",
    .tp_basicsize = sizeof(Tape),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_methods = tape_methods,
    .tp_members = tape_members,
    .tp_as_sequence = &tape_as_sequence,
    .tp_traverse = tape_traverse,
    .tp_clear = tape_clear,
    .tp_dealloc = tape_dealloc,
    .tp_new = tape_new,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "fsdpdoctor._tape",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__tape(void)
{
#define INTERN(name)                                                                 \
    if ((s_##name = PyUnicode_InternFromString(#name)) == NULL)                      \
        return NULL;
    NAMES(INTERN)
    PyObject *made = PyModule_Create(&module);
    if (made == NULL || PyModule_AddType(made, &TapeType) < 0
        || PyModule_AddType(made, &HookType) < 0
        || PyType_Ready(&ProxyType) < 0
        || PyModule_AddIntConstant(made, "VERSION", TAPE_VERSION) < 0) {
        Py_XDECREF(made);
        return NULL;
    }
    return made;
}
