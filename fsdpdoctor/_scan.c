/* Scans chunks of trace events: the fast twin of importers/reader/decode_json.py.

   A chunk is the text of whole events, `{...}, {...}`. `Scanner.scan` gives the rows
   of its complete events as columns, or declines (None) whatever it is not sure that
   msgspec would read in the same way; the caller then asks msgspec. So this file may
   be stricter than JSON, and must never be laxer: it checks the grammar of all that
   it skips. Values that need more than plain digits (exponents, numbers in strings)
   mark their row as odd, to be read again from its own text.

   The scan itself holds no Python object and runs without the GIL.

   [Note: Plain operators] Most events are operators of which nothing is asked but where
   they ran, by their External id. That is told of every operator and annotation in a
   table of its own (`OPS`), which holds for an operator that is not kept by its name
   all that is read of it: it gets no row among the events. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#define UNKNOWN (-1)
#define NO_TIME INT64_MIN
#define LIMIT_NS ((int64_t)1 << 62)
#define MAX_DEPTH 64
#define MAX_CATEGORIES 64
#define MAX_UNREAD 64 /* other categories that are counted: a trace has some ten */
#define MAX_UNREAD_BYTES 64 /* of such a category's name */
#define MAX_PREFIXES 32
#define MAX_OP_PIDS 16 /* processes of plain operators: of others they get a row */
#define VERSION 4 /* of what `scan` gives: decode_c.SCANNER_VERSION must be the same */

/* Columns of the events, in the order of `decode_c.COLUMNS`: those of 8 bytes, of 4, and
   of 1. What is an offset fits 4, as no chunk is larger (`MAX_CHUNK_BYTES`). */
enum {
    C_START, C_DURATION, C_PID, C_TID, C_EXTERNAL, C_CORRELATION, C_STREAM, C_DEVICE,
    C_BYTES, WIDE, C_NAME = WIDE, C_ARGS_AT, C_ARGS_END, C_EVENT_AT, C_EVENT_END,
    WIDE_AND_MIDDLE, C_CAT = WIDE_AND_MIDDLE, C_COLLECTIVE, C_ODD, COLUMNS
};
#define MAX_CHUNK_BYTES INT32_MAX

/* Those of the operators and annotations, in the order of `decode_c.OP_COLUMNS`. `O_ROW`
   is the row of an odd event, whose values stand in its own text alone; else UNKNOWN. */
enum { O_EXTERNAL, O_START, O_TID, OP_WIDE, O_ROW = OP_WIDE, OP_COLUMNS };

/* The tables that a scan fills, and how many of their columns have 8 bytes, and 4. */
enum { EVENTS, OPS, TABLES };
static const struct { int wide, middle, columns; } LAYOUT[TABLES] = {
    {WIDE, WIDE_AND_MIDDLE, COLUMNS}, {OP_WIDE, OP_COLUMNS, OP_COLUMNS}
};

static size_t bytes_of(int table, int column) {
    return column < LAYOUT[table].wide ? 8 : column < LAYOUT[table].middle ? 4 : 1;
}

typedef struct {
    const char *text;
    Py_ssize_t length;
    uint64_t hash;
    int plain; /* of an operator that is not kept; UNKNOWN: not looked at yet */
} Interned;

typedef struct {
    Interned *items;
    Py_ssize_t count, capacity;
    int32_t *slots; /* index into items, or -1 */
    size_t mask;
} Table;

typedef struct {
    char text[MAX_UNREAD_BYTES];
    Py_ssize_t length;
    int64_t events;
} Unread;

/* A string as it stands between its quotes. */
typedef struct {
    const char *text;
    Py_ssize_t length;
    int escaped, ascii;
} String;

/* The members of an event, then those of its arguments. `AT_EVENT` and `AT_ARGS` are no
   members: they stand for an object's opening brace. */
enum {
    AT_EVENT, PHASE, START, DURATION, PID, TID, NAME, CATEGORY, ARGS, OTHER,
    AT_ARGS, NUMBER, NUMBER_LAST = NUMBER + C_BYTES, COLLECTIVE, SCALAR, OTHER_ARG,
    MEMBERS
};

/* [Note: Expected keys] A writer puts its keys in one order, with one spacing. What
   stands between a value and the next (`, "ts": `) is kept by the member before it: where
   the same bytes come again they need not be parsed again. `mask`: a bit a byte. */
#define KEY_BYTES 32
typedef struct {
    char text[KEY_BYTES];
    uint32_t mask; /* 0: nothing is expected */
    int length, member;
} Expected;

/* [Note: Expected lengths] Where the next token begins hangs on how long this one is. A
   processor that has to work that out from the text waits for it; one that only has to
   check a guess goes on meanwhile. So each member keeps how long its value was. */
typedef struct {
    Py_ssize_t whole, part; /* of a number before and after its point; of a string */
} Lengths;

/* [Note: Expected stretches] Of two events of a kind most bytes are the same: from the
   opening brace to the name, and from the name to the time, where phase, category,
   process and thread stand. What an event was after such a stretch is kept with the
   stretch's bytes. Where they come again, at the same place of an event that knew as
   much, it is that again, and nothing is parsed. */
#define STRETCH_BYTES 128
#define STRETCHES 16 /* that begin at one member */
typedef struct {
    char text[STRETCH_BYTES];
    Py_ssize_t length, cat_at; /* where the category's text begins, if it is in it */
    String cat;
    int64_t pid, tid;
    unsigned seen; /* members that are in it */
    int cat_id, next; /* next: the member after it */
    char phase_before, phase;
} Stretch;

typedef struct {
    Stretch items[STRETCHES];
    unsigned char then[STRETCHES]; /* which one came after each, the last time */
    int count, last, oldest;
} Stretches;

/* Stretches begin at the opening brace and after the name. */
enum { FROM_BRACE, FROM_NAME, BEGINNINGS };

typedef struct {
    PyObject_HEAD
    Table names;
    char *category[MAX_CATEGORIES];
    size_t category_length[MAX_CATEGORIES];
    int category_id[MAX_CATEGORIES];
    int categories;
    int operator, annotation; /* categories */
    char *kept[MAX_PREFIXES]; /* of the operators' names that get a row */
    int prefixes;
    int busy;
    Py_ssize_t most_rows[TABLES]; /* of a chunk so far: the next one has about as many */
    Expected expected[MEMBERS]; /* by the member before */
    Lengths lengths[MEMBERS];
    Stretches stretches[BEGINNINGS];
} Scanner;

typedef struct {
    PyObject *block[COLUMNS]; /* bytearrays, which the caller gets */
    char *column[COLUMNS]; /* what is in them */
    Py_ssize_t rows, capacity;
} Rows;

typedef struct {
    const char *at, *end, *begin;
    Scanner *scanner;
    Rows rows[TABLES];
    PyThreadState *thread; /* while the scan runs without the GIL */
    int64_t events;
    int64_t op_pid[MAX_OP_PIDS]; /* the processes of operators that got no row */
    int op_pids;
    Unread unread[MAX_UNREAD]; /* categories of complete events that are not kept */
    int unreads;
    int failed_memory;
} Scan;

/* ---- Interning ---------------------------------------------------------------- */

static uint64_t hash_of(const char *text, Py_ssize_t length) {
    uint64_t hash = 0x9e3779b97f4a7c15ULL ^ (uint64_t)length, word;
    while (length >= 8) {
        memcpy(&word, text, 8);
        hash = (hash ^ word) * 0xff51afd7ed558ccdULL;
        hash ^= hash >> 32;
        text += 8;
        length -= 8;
    }
    word = 0;
    memcpy(&word, text, (size_t)length);
    hash = (hash ^ word) * 0xc4ceb9fe1a85ec53ULL;
    return hash ^ (hash >> 29);
}

static void table_place(Table *table, Py_ssize_t index) {
    size_t slot = (size_t)table->items[index].hash & table->mask;
    while (table->slots[slot] >= 0) slot = (slot + 1) & table->mask;
    table->slots[slot] = (int32_t)index;
}

static int table_rehash(Table *table, size_t size) {
    int32_t *slots = malloc(size * sizeof *slots);
    if (slots == NULL) return -1;
    memset(slots, 0xff, size * sizeof *slots);
    free(table->slots);
    table->slots = slots;
    table->mask = size - 1;
    for (Py_ssize_t i = 0; i < table->count; i++) table_place(table, i);
    return 0;
}

/* The id of a string, or -1 where memory ran out. */
static int32_t table_intern(Table *table, const char *text, Py_ssize_t length) {
    uint64_t hash = hash_of(text, length);
    size_t slot = (size_t)hash & table->mask;
    while (table->slots[slot] >= 0) {
        Interned *item = &table->items[table->slots[slot]];
        if (item->hash == hash && item->length == length
            && memcmp(item->text, text, (size_t)length) == 0)
            return table->slots[slot];
        slot = (slot + 1) & table->mask;
    }
    if (table->count == table->capacity) {
        Py_ssize_t capacity = table->capacity * 2;
        Interned *items = realloc(table->items, (size_t)capacity * sizeof *items);
        if (items == NULL) return -1;
        table->items = items;
        table->capacity = capacity;
    }
    if ((size_t)table->count * 2 >= table->mask
        && table_rehash(table, (table->mask + 1) * 2) < 0)
        return -1;
    char *copy = malloc((size_t)length + 1);
    if (copy == NULL) return -1;
    memcpy(copy, text, (size_t)length);
    copy[length] = 0;
    table->items[table->count] = (Interned){copy, length, hash, UNKNOWN};
    table_place(table, table->count);
    return (int32_t)table->count++;
}

/* Forget the strings of a chunk that was declined. */
static int table_truncate(Table *table, Py_ssize_t count) {
    if (table->count == count) return 0;
    while (table->count > count) free((void *)table->items[--table->count].text);
    return table_rehash(table, table->mask + 1);
}

/* ---- JSON ----------------------------------------------------------------------- */

static inline void skip_space(Scan *s) {
    while (s->at < s->end
           && (*s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t'))
        s->at++;
}

static inline int take(Scan *s, char wanted) {
    if (s->at >= s->end || *s->at != wanted) return -1;
    s->at++;
    return 0;
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* After a backslash. Surrogates are left to msgspec. */
static int skip_escape(Scan *s) {
    if (s->at >= s->end) return -1;
    char c = *s->at++;
    if (c != 'u') return strchr("\"\\/bfnrt", c) != NULL && c != 0 ? 0 : -1;
    if (s->end - s->at < 4) return -1;
    int code = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_value(s->at[i]);
        if (digit < 0) return -1;
        code = code * 16 + digit;
    }
    if (code >= 0xd800 && code < 0xe000) return -1;
    s->at += 4;
    return 0;
}

/* Go past so many bytes, of which `guess` is what they were the last time. */
static inline void advance(Scan *s, Py_ssize_t length, Py_ssize_t *guess) {
    Py_ssize_t guessed = *guess;
    if (length == guessed) {
#if defined(__GNUC__)
        __asm__("" : "+r"(guessed)); /* else the compiler would go by `length` */
#endif
        s->at += guessed;
    } else {
        s->at += length;
        *guess = length;
    }
}

static inline int take_string(Scan *s, String *found, Py_ssize_t *guess) {
    (void)guess; /* without SSE2 each byte is looked at */
    if (take(s, '"') < 0) return -1;
    found->text = s->at;
    found->escaped = 0;
    found->ascii = 1;
    for (;;) {
#if defined(__SSE2__)
        const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\');
        const __m128i space = _mm_set1_epi8(' ');
        while (s->end - s->at >= 16) {
            __m128i v = _mm_loadu_si128((const __m128i *)s->at);
            /* Signed: also true for bytes of 0x80 and above. */
            __m128i stop = _mm_or_si128(
                _mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, slash)),
                _mm_cmplt_epi8(v, space));
            int mask = _mm_movemask_epi8(stop);
            if (mask) {
                advance(s, __builtin_ctz((unsigned)mask), guess);
                break;
            }
            s->at += 16;
        }
#endif
        if (s->at >= s->end) return -1;
        unsigned char c = (unsigned char)*s->at++;
        if (c == '"') {
            found->length = s->at - 1 - found->text;
            return 0;
        }
        if (c == '\\') {
            found->escaped = 1;
            if (skip_escape(s) < 0) return -1;
        } else if (c < 0x20) {
            return -1;
        } else if (c >= 0x80) {
            found->ascii = 0;
        }
    }
}

static inline int is_digit(const Scan *s) {
    return s->at < s->end && *s->at >= '0' && *s->at <= '9';
}

/* A run of digits, and its value where it has at most MOST_DIGITS, which always fit. */
#define MOST_DIGITS 18
typedef struct {
    const char *text;
    Py_ssize_t length;
    int64_t value;
} Digits;

#if defined(__SSE2__)
static const int64_t TEN_TO[8] = {
    1, 10, 100, 1000, 10000, 100000, 1000000, 10000000
};

/* Of eight digits, the first in the lowest byte; their pairs, fours, all. */
static inline int64_t eight_digits(uint64_t word) {
    const uint64_t mask = 0x000000ff000000ffULL;
    word = word * 10 + (word >> 8);
    return (int64_t)(((word & mask) * 0x000f424000000064ULL
                      + ((word >> 16) & mask) * 0x0000271000000001ULL) >> 32);
}

/* A run of 1 to 15 digits that ends well before the text; 0 where it does not. */
static inline int take_short_run(Scan *s, Digits *digits, Py_ssize_t *guess) {
    if (s->end - s->at < 16) return 0;
    const __m128i text = _mm_loadu_si128((const __m128i *)s->at);
    const __m128i value = _mm_sub_epi8(text, _mm_set1_epi8('0'));
    const __m128i is = _mm_cmpeq_epi8(_mm_min_epu8(value, _mm_set1_epi8(9)), value);
    const int length = __builtin_ctz(~(unsigned)_mm_movemask_epi8(is));
    if (length == 0 || length == 16) return 0;
    uint64_t half[2];
    memcpy(half, &value, sizeof half);
    digits->text = s->at;
    digits->length = length;
    /* What is no digit is shifted out, and zeros are shifted in before the first. */
    digits->value = length <= 8
        ? eight_digits(half[0] << (64 - 8 * length))
        : eight_digits(half[0]) * TEN_TO[length - 8]
            + eight_digits(half[1] << (128 - 8 * length));
    advance(s, length, guess);
    return 1;
}
#endif

static inline int take_digits(Scan *s, Digits *digits, Py_ssize_t *guess) {
#if defined(__SSE2__)
    if (take_short_run(s, digits, guess)) return 0;
#else
    (void)guess;
#endif
    if (!is_digit(s)) return -1;
    digits->text = s->at;
    digits->value = 0;
    for (; is_digit(s); s->at++)
        if (s->at - digits->text < MOST_DIGITS)
            digits->value = digits->value * 10 + (*s->at - '0');
    digits->length = s->at - digits->text;
    return 0;
}

/* A number by JSON's grammar. `part`: what is after its point, if it has one. */
typedef struct {
    Digits whole, part;
    int negative, fraction, exponent;
} Number;

static inline int take_number(Scan *s, Number *n, Lengths *lengths) {
    n->negative = s->at < s->end && *s->at == '-';
    if (n->negative) s->at++;
    if (take_digits(s, &n->whole, &lengths->whole) < 0) return -1;
    if (n->whole.length > 1 && *n->whole.text == '0') return -1;
    n->fraction = s->at < s->end && *s->at == '.';
    if (n->fraction) {
        s->at++;
        if (take_digits(s, &n->part, &lengths->part) < 0) return -1;
    }
    n->exponent = s->at < s->end && (*s->at == 'e' || *s->at == 'E');
    if (n->exponent) {
        Digits power;
        s->at++;
        if (s->at < s->end && (*s->at == '+' || *s->at == '-')) s->at++;
        if (take_digits(s, &power, &lengths->part) < 0) return -1;
    }
    return 0;
}

static int take_word(Scan *s, const char *word) {
    Py_ssize_t length = (Py_ssize_t)strlen(word);
    if (s->end - s->at < length || memcmp(s->at, word, (size_t)length) != 0) return -1;
    s->at += length;
    return 0;
}

static int skip_value(Scan *s, int depth, Lengths *lengths) {
    String string;
    Number number;
    if (s->at >= s->end) return -1;
    switch (*s->at) {
    case '"': return take_string(s, &string, &lengths->whole);
    case 't': return take_word(s, "true");
    case 'f': return take_word(s, "false");
    case 'n': return take_word(s, "null");
    case '{':
    case '[': break;
    default: return take_number(s, &number, lengths);
    }
    if (depth >= MAX_DEPTH) return -1;
    const int object = *s->at++ == '{';
    const char close = object ? '}' : ']';
    skip_space(s);
    if (s->at < s->end && *s->at == close) {
        s->at++;
        return 0;
    }
    for (;;) {
        if (object) {
            if (take_string(s, &string, &lengths->part) < 0) return -1;
            skip_space(s);
            if (take(s, ':') < 0) return -1;
            skip_space(s);
        }
        if (skip_value(s, depth + 1, lengths) < 0) return -1;
        skip_space(s);
        if (s->at >= s->end) return -1;
        if (*s->at == close) {
            s->at++;
            return 0;
        }
        if (take(s, ',') < 0) return -1;
        skip_space(s);
    }
}

/* ---- Values --------------------------------------------------------------------- */

/* How odd a value is. A wild one may be past what a float holds, where msgspec stops
   even in events that are not kept; a double holds 308 digits before the point. */
enum { ODD = 1, WILD = 2 };
#define MAX_DIGITS 300

static int oddness(const Number *n) {
    return n->exponent || n->whole.length > MAX_DIGITS ? ODD | WILD : ODD;
}

/* Nanoseconds of what is after a point in microseconds, halves up. */
static inline int64_t part_ns(const Digits *part) {
    static const int scale[4] = {0, 100, 10, 1};
    if (part->length <= 3) return part->value * scale[part->length];
    const char *c = part->text;
    return (c[0] - '0') * 100 + (c[1] - '0') * 10 + (c[2] - '0') + (c[3] >= '5');
}

/* Microseconds to nanoseconds, halves away from zero. */
static int take_time(Scan *s, int64_t *ns, int *odd, Lengths *lengths) {
    Number n;
    if (take_number(s, &n, lengths) < 0) return -1;
    if (n.exponent || n.whole.length > MOST_DIGITS
        || n.whole.value >= LIMIT_NS / 1000) {
        *odd |= oddness(&n);
        return 0;
    }
    *ns = n.whole.value * 1000 + (n.fraction ? part_ns(&n.part) : 0);
    if (n.negative) *ns = -*ns;
    return 0;
}

/* "12" or "0x1f"; other strings hold no number. */
static int64_t string_value(const String *string) {
    const char *at = string->text, *end = string->text + string->length;
    int64_t value = 0;
    if (string->length > 2 && string->length <= 17 && at[0] == '0'
        && (at[1] == 'x' || at[1] == 'X')) {
        for (at += 2; at < end; at++) {
            int digit = hex_value(*at);
            if (digit < 0) return UNKNOWN;
            value = value * 16 + digit;
        }
        return value;
    }
    int negative = at < end && *at == '-';
    at += negative;
    if (at >= end || end - at > 18) return UNKNOWN;
    for (; at < end; at++) {
        if (*at < '0' || *at > '9') return UNKNOWN;
        value = value * 10 + (*at - '0');
    }
    return negative ? -value : value;
}

/* A whole number, in a string if `strings`; floats and large ones are odd. */
static int take_int(
    Scan *s, int64_t *value, int strings, int *odd, Lengths *lengths) {
    if (s->at >= s->end) return -1;
    if (*s->at == '"') {
        String string;
        if (take_string(s, &string, &lengths->whole) < 0 || !string.ascii) return -1;
        if (!strings || string.escaped) *odd |= ODD;
        else *value = string_value(&string);
        return 0;
    }
    if (*s->at == 'n') {
        *value = UNKNOWN;
        return take_word(s, "null");
    }
    Number n;
    if (take_number(s, &n, lengths) < 0) return -1;
    if (n.fraction || n.exponent || n.whole.length > MOST_DIGITS) *odd |= oddness(&n);
    else *value = n.negative ? -n.whole.value : n.whole.value;
    return 0;
}

static int valid_utf8(const char *text, Py_ssize_t length) {
    const unsigned char *c = (const unsigned char *)text, *end = c + length;
    while (c < end) {
        int more;
        uint32_t code;
        if (*c < 0x80) { c++; continue; }
        if (*c >= 0xc2 && *c < 0xe0) { more = 1; code = *c & 0x1f; }
        else if (*c >= 0xe0 && *c < 0xf0) { more = 2; code = *c & 0x0f; }
        else if (*c >= 0xf0 && *c < 0xf5) { more = 3; code = *c & 0x07; }
        else return 0;
        if (end - c <= more) return 0;
        for (int i = 1; i <= more; i++) {
            if ((c[i] & 0xc0) != 0x80) return 0;
            code = (code << 6) | (c[i] & 0x3f);
        }
        if ((more == 2 && code < 0x800) || (more == 3 && code < 0x10000)
            || (code >= 0xd800 && code < 0xe000) || code > 0x10ffff)
            return 0;
        c += more + 1;
    }
    return 1;
}

/* An argument that is read only of collectives: a number, text or null in all. */
static int skip_scalar(Scan *s, Lengths *lengths) {
    String string;
    Number n;
    if (s->at >= s->end) return -1;
    if (*s->at == 'n') return take_word(s, "null");
    if (*s->at != '"')
        return take_number(s, &n, lengths) < 0 || oddness(&n) != ODD ? -1 : 0;
    if (take_string(s, &string, &lengths->whole) < 0) return -1;
    return string.ascii || valid_utf8(string.text, string.length) ? 0 : -1;
}

/* ---- Events --------------------------------------------------------------------- */

typedef struct {
    int64_t value[COLUMNS];
    String name, cat;
    int has_name, has_cat, odd;
    int cat_id; /* UNKNOWN: not looked up yet */
    char phase; /* 0: none yet */
    unsigned seen;
} Event;

static int is_key(const String *key, const char *name, size_t length) {
    return (size_t)key->length == length && memcmp(key->text, name, length) == 0;
}
#define IS(key, name) is_key(key, name, sizeof(name) - 1)

/* Note a key; -1 where it was there before, since the last one would count. */
static int once(Event *event, int bit) {
    if (event->seen & (1u << bit)) return -1;
    event->seen |= 1u << bit;
    return 0;
}

static int event_member(const String *key) {
    if (IS(key, "ph")) return PHASE;
    if (IS(key, "ts")) return START;
    if (IS(key, "dur")) return DURATION;
    if (IS(key, "pid")) return PID;
    if (IS(key, "tid")) return TID;
    if (IS(key, "name")) return NAME;
    if (IS(key, "cat")) return CATEGORY;
    if (IS(key, "args")) return ARGS;
    return OTHER;
}

static int args_member(const String *key) {
    if (IS(key, "External id")) return NUMBER + C_EXTERNAL;
    if (IS(key, "correlation")) return NUMBER + C_CORRELATION;
    if (IS(key, "stream")) return NUMBER + C_STREAM;
    if (IS(key, "device")) return NUMBER + C_DEVICE;
    if (IS(key, "bytes")) return NUMBER + C_BYTES;
    if (IS(key, "Collective name")) return COLLECTIVE;
    if (IS(key, "In msg nelems") || IS(key, "Out msg nelems") || IS(key, "dtype")
        || IS(key, "Group size") || IS(key, "Seq") || IS(key, "Process Group Name")
        || IS(key, "Process Group Ranks") || IS(key, "Process Group Description"))
        return SCALAR;
    return OTHER_ARG;
}

/* Whether an expected key stands here. */
static inline int stands_here(const Scan *s, const Expected *expected) {
#if defined(__SSE2__)
    if (s->end - s->at <= KEY_BYTES) return 0;
    const __m128i *there = (const __m128i *)expected->text;
    const __m128i *here = (const __m128i *)s->at;
    uint32_t same = (uint32_t)_mm_movemask_epi8(
        _mm_cmpeq_epi8(_mm_loadu_si128(here), _mm_loadu_si128(there)));
    if (expected->length > 16)
        same |= (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(
                    _mm_loadu_si128(here + 1), _mm_loadu_si128(there + 1))) << 16;
    return expected->mask != 0 && (same & expected->mask) == expected->mask;
#else
    return expected->mask != 0 && s->end - s->at > expected->length
        && memcmp(s->at, expected->text, (size_t)expected->length) == 0;
#endif
}

static void expect(Expected *expected, const char *text, Py_ssize_t length, int member) {
    expected->mask = 0;
    if (length > KEY_BYTES) return;
    memcpy(expected->text, text, (size_t)length);
    expected->mask = UINT32_MAX >> (KEY_BYTES - length);
    expected->length = (int)length;
    expected->member = member;
}

static inline int closes(Scan *s) {
    if (s->at >= s->end || *s->at != '}') return 0;
    s->at++;
    return 1;
}

/* The next member of an object, up to its value; `before` is the member before it, or
   the brace that opened the object. Closing braces are the other answer. */
#define CLOSED MEMBERS
static inline int next_member(Scan *s, int before, int (*member_of)(const String *)) {
    Expected *expected = &s->scanner->expected[before];
    if (closes(s)) return CLOSED;
    if (stands_here(s, expected)) {
        s->at += expected->length;
        skip_space(s);
        return expected->member;
    }
    const char *from = s->at;
    String key;
    skip_space(s);
    if (closes(s)) return CLOSED;
    if (before != AT_EVENT && before != AT_ARGS) {
        if (take(s, ',') < 0) return -1;
        skip_space(s);
    }
    if (take_string(s, &key, &s->scanner->lengths[before].part) < 0 || key.escaped)
        return -1;
    skip_space(s);
    if (take(s, ':') < 0) return -1;
    skip_space(s);
    const int member = member_of(&key);
    expect(expected, from, s->at - from, member);
    return member;
}

static int take_arg(Scan *s, Event *event, int member) {
    Lengths *lengths = &s->scanner->lengths[member];
    if (member == OTHER_ARG) return skip_value(s, 2, lengths);
    if (member == SCALAR) return skip_scalar(s, lengths);
    if (member == COLLECTIVE) {
        if (once(event, C_COLLECTIVE) < 0 || s->at >= s->end) return -1;
        event->value[C_COLLECTIVE] = *s->at != 'n';
        return skip_scalar(s, lengths);
    }
    const int column = member - NUMBER;
    return once(event, column) < 0
        ? -1 : take_int(s, &event->value[column], 1, &event->odd, lengths);
}

static int take_args(Scan *s, Event *event) {
    event->value[C_ARGS_AT] = s->at - s->begin;
    if (take(s, '{') < 0) return -1;
    int member = AT_ARGS;
    while ((member = next_member(s, member, args_member)) != CLOSED)
        if (member < 0 || take_arg(s, event, member) < 0) return -1;
    event->value[C_ARGS_END] = s->at - s->begin;
    return 0;
}

static int take_phase(Scan *s, Event *event) {
    String phase;
    if (s->end - s->at > 3 && memcmp(s->at, "\"X\"", 3) == 0) {
        s->at += 3;
        event->phase = 'X';
        return once(event, 20);
    }
    Py_ssize_t *guess = &s->scanner->lengths[PHASE].whole;
    if (once(event, 20) < 0 || take_string(s, &phase, guess) < 0) return -1;
    if (phase.length != 1 || phase.escaped
        || strchr("XBEIMCDNOPRSTVabcefinpstv()", phase.text[0]) == NULL)
        return -1;
    event->phase = phase.text[0];
    return 0;
}

static int take_member(Scan *s, Event *event, int member) {
    if (member == PHASE) return take_phase(s, event);
    /* Of other phases nothing is read, so nothing needs to be as expected. */
    Lengths *lengths = &s->scanner->lengths[member];
    if (event->phase != 0 && event->phase != 'X') return skip_value(s, 1, lengths);
    switch (member) {
    case START:
        return once(event, C_START) < 0
            ? -1 : take_time(s, &event->value[C_START], &event->odd, lengths);
    case DURATION:
        return once(event, C_DURATION) < 0
            ? -1 : take_time(s, &event->value[C_DURATION], &event->odd, lengths);
    case PID:
        return once(event, C_PID) < 0
            ? -1 : take_int(s, &event->value[C_PID], 0, &event->odd, lengths);
    case TID:
        return once(event, C_TID) < 0
            ? -1 : take_int(s, &event->value[C_TID], 0, &event->odd, lengths);
    case NAME:
        event->has_name = 1;
        return once(event, C_NAME) < 0
            ? -1 : take_string(s, &event->name, &lengths->whole);
    case CATEGORY:
        event->has_cat = 1;
        return once(event, C_CAT) < 0
            ? -1 : take_string(s, &event->cat, &lengths->whole);
    case ARGS: return once(event, 21) < 0 ? -1 : take_args(s, event);
    default: return skip_value(s, 1, lengths);
    }
}

static int category_of(const Scanner *scanner, const String *cat) {
    for (int i = 0; i < scanner->categories; i++)
        if (scanner->category_length[i] == (size_t)cat->length
            && memcmp(scanner->category[i], cat->text, (size_t)cat->length) == 0)
            return scanner->category_id[i];
    return 0;
}

/* Count an event of a category that is not kept; -1 where there is no room. */
static int count_unread(Scan *s, const String *cat) {
    if (cat->length == 0) return 0;
    for (int i = 0; i < s->unreads; i++) {
        Unread *one = &s->unread[i];
        if (one->length == cat->length
            && memcmp(one->text, cat->text, (size_t)cat->length) == 0) {
            one->events++;
            return 0;
        }
    }
    if (s->unreads == MAX_UNREAD || cat->length > MAX_UNREAD_BYTES) return -1;
    Unread *one = &s->unread[s->unreads++];
    memcpy(one->text, cat->text, (size_t)cat->length);
    one->length = cat->length;
    one->events = 1;
    return 0;
}

/* Make a table longer. It is called without the GIL, and takes it meanwhile. */
static int grow(Scan *s, int table) {
    Rows *rows = &s->rows[table];
    const Py_ssize_t most = s->scanner->most_rows[table], first = most + most / 16;
    const Py_ssize_t capacity
        = rows->capacity ? rows->capacity * 2 : first > 4096 ? first : 4096;
    PyEval_RestoreThread(s->thread);
    for (int i = 0; i < LAYOUT[table].columns && !s->failed_memory; i++) {
        PyObject **block = &rows->block[i];
        const Py_ssize_t size = capacity * (Py_ssize_t)bytes_of(table, i);
        if (*block == NULL) *block = PyByteArray_FromStringAndSize(NULL, size);
        else if (PyByteArray_Resize(*block, size) < 0) s->failed_memory = 1;
        if (*block == NULL) s->failed_memory = 1;
        else rows->column[i] = PyByteArray_AS_STRING(*block);
    }
    PyErr_Clear(); /* `failed_memory` says it */
    s->thread = PyEval_SaveThread();
    rows->capacity = capacity;
    return s->failed_memory ? -1 : 0;
}

/* The next row of a table, or -1 where memory ran out. */
static inline Py_ssize_t next_row(Scan *s, int table) {
    Rows *rows = &s->rows[table];
    if (rows->rows == rows->capacity && grow(s, table) < 0) return -1;
    return rows->rows++;
}

static inline int keep_values(Scan *s, const Event *event) {
    const Py_ssize_t row = next_row(s, EVENTS);
    char **column = s->rows[EVENTS].column;
    if (row < 0) return -1;
    for (int i = 0; i < WIDE; i++) ((int64_t *)column[i])[row] = event->value[i];
    for (int i = WIDE; i < WIDE_AND_MIDDLE; i++)
        ((int32_t *)column[i])[row] = (int32_t)event->value[i];
    for (int i = WIDE_AND_MIDDLE; i < COLUMNS; i++)
        ((int8_t *)column[i])[row] = (int8_t)event->value[i];
    return 0;
}

/* Say where an operator or annotation ran. */
static inline int keep_op(Scan *s, const Event *event) {
    const Py_ssize_t row = next_row(s, OPS);
    char **column = s->rows[OPS].column;
    if (row < 0) return -1;
    ((int64_t *)column[O_EXTERNAL])[row] = event->value[C_EXTERNAL];
    ((int64_t *)column[O_START])[row] = event->value[C_START];
    ((int64_t *)column[O_TID])[row] = event->value[C_TID];
    ((int32_t *)column[O_ROW])[row]
        = event->odd ? (int32_t)s->rows[EVENTS].rows : UNKNOWN;
    return 0;
}

/* Whether operators of a name get no row. One with an escape is the caller's to read. */
static int is_plain(const Scanner *scanner, Interned *name) {
    if (name->plain == UNKNOWN) {
        name->plain = scanner->prefixes > 0
            && memchr(name->text, '\\', (size_t)name->length) == NULL;
        for (int i = 0; i < scanner->prefixes && name->plain; i++)
            name->plain
                = strncmp(name->text, scanner->kept[i], strlen(scanner->kept[i])) != 0;
    }
    return name->plain;
}

/* Note the process of an operator without a row; 0 where there is no room for it. */
static int note_pid(Scan *s, int64_t pid) {
    for (int i = 0; i < s->op_pids; i++)
        if (s->op_pid[i] == pid) return 1;
    if (s->op_pids == MAX_OP_PIDS) return 0;
    s->op_pid[s->op_pids++] = pid;
    return 1;
}

/* Keep a complete event, if it is of a category that is kept. */
static int keep_event(Scan *s, Event *event) {
    if (event->has_name && !event->name.ascii
        && !valid_utf8(event->name.text, event->name.length))
        return -1;
    if (event->has_cat && (event->cat.escaped || !event->cat.ascii)) return -1;
    int cat = !event->has_cat ? 0
        : event->cat_id != UNKNOWN ? event->cat_id
        : category_of(s->scanner, &event->cat);
    if (cat == 0) {
        if (event->odd & WILD) return -1;
        return event->has_cat ? count_unread(s, &event->cat) : 0;
    }
    if (!(event->seen & (1u << C_START))) event->value[C_START] = NO_TIME;
    Scanner *scanner = s->scanner;
    int32_t name = table_intern(
        &scanner->names, event->has_name ? event->name.text : "",
        event->has_name ? event->name.length : 0);
    if (name < 0) {
        s->failed_memory = 1;
        return -1;
    }
    event->value[C_CAT] = cat;
    event->value[C_NAME] = name;
    event->value[C_ODD] = event->odd != 0;
    const int timed = event->value[C_START] != NO_TIME && event->value[C_DURATION] >= 0;
    const int ran = timed && event->value[C_EXTERNAL] >= 0;
    if ((cat == scanner->operator || cat == scanner->annotation) && (ran || event->odd)
        && keep_op(s, event) < 0)
        return -1;
    if (cat == scanner->operator && timed && !event->odd && !event->value[C_COLLECTIVE]
        && is_plain(scanner, &scanner->names.items[name])
        && note_pid(s, event->value[C_PID]))
        return 0;
    return keep_values(s, event);
}

/* ---- Stretches ------------------------------------------------------------------- */

/* A stretch whose bytes are being read for the first time. */
typedef struct {
    Stretches *among; /* NULL: none is */
    const char *from;
    unsigned seen_before;
    char phase_before;
} Reading;

static inline Stretches *stretches_from(Scan *s, int member) {
    return member == AT_EVENT ? &s->scanner->stretches[FROM_BRACE]
        : member == NAME ? &s->scanner->stretches[FROM_NAME] : NULL;
}

static inline int is_constant(int member) {
    return member == PHASE || member == CATEGORY || member == PID || member == TID;
}

static inline int comes_again(const Scan *s, const Event *event, const Stretch *one) {
    return one->phase_before == event->phase && (one->seen & event->seen) == 0
        && s->end - s->at > one->length
        && memcmp(s->at, one->text, (size_t)one->length) == 0;
}

/* Take a stretch that was read before; the member after it, or -1: none is here. */
static inline int take_stretch(Scan *s, Event *event, Stretches *among) {
    int at = among->then[among->last];
    if (at >= among->count || !comes_again(s, event, &among->items[at])) {
        for (at = 0; at < among->count; at++)
            if (comes_again(s, event, &among->items[at])) break;
        if (at == among->count) return -1;
        among->then[among->last] = (unsigned char)at;
    }
    among->last = at;
    const Stretch *one = &among->items[at];
    if (one->seen & (1u << C_CAT)) {
        event->cat = one->cat;
        event->cat.text = s->at + one->cat_at;
        event->cat_id = one->cat_id;
        event->has_cat = 1;
    }
    if (one->seen & (1u << C_PID)) event->value[C_PID] = one->pid;
    if (one->seen & (1u << C_TID)) event->value[C_TID] = one->tid;
    event->seen |= one->seen;
    event->phase = one->phase;
    s->at += one->length;
    skip_space(s);
    return one->next;
}

/* Keep a stretch that has been read up to the value of `next`. */
static void keep_stretch(
    const Scan *s, const Reading *reading, const Event *event, int next) {
    Stretches *among = reading->among;
    const Py_ssize_t length = s->at - reading->from;
    if (length > STRETCH_BYTES || event->odd) return;
    const int at = among->count < STRETCHES ? among->count++ : among->oldest;
    if (among->count == STRETCHES) among->oldest = (at + 1) % STRETCHES;
    Stretch *one = &among->items[at];
    memcpy(one->text, reading->from, (size_t)length);
    one->length = length;
    one->seen = event->seen & ~reading->seen_before;
    one->phase_before = reading->phase_before;
    one->phase = event->phase;
    one->cat = event->cat;
    if (one->seen & (1u << C_CAT)) {
        one->cat_at = event->cat.text - reading->from;
        one->cat_id = category_of(s->scanner, &event->cat);
    }
    one->pid = event->value[C_PID];
    one->tid = event->value[C_TID];
    one->next = next;
    among->then[among->last] = (unsigned char)at;
    among->last = at;
}

/* The next member of an event, up to its value: past a whole stretch, if one is here. */
static inline int next_of_event(Scan *s, Event *event, int before, Reading *reading) {
    Stretches *among = stretches_from(s, before);
    if (among != NULL) {
        const int member = take_stretch(s, event, among);
        if (member >= 0) return member;
        *reading = (Reading){among, s->at, event->seen, event->phase};
    }
    const int member = next_member(s, before, event_member);
    if (reading->among != NULL && !is_constant(member)) {
        if (member >= 0 && member != CLOSED) keep_stretch(s, reading, event, member);
        reading->among = NULL;
    }
    return member;
}

static int take_event(Scan *s) {
    Event event;
    Reading reading = {NULL, NULL, 0, 0};
    memset(&event, 0, sizeof event);
    event.cat_id = UNKNOWN;
    for (int i = C_PID; i <= C_BYTES; i++) event.value[i] = UNKNOWN;
    event.value[C_ARGS_AT] = event.value[C_ARGS_END] = UNKNOWN;
    event.value[C_EVENT_AT] = s->at - s->begin;
    if (take(s, '{') < 0) return -1;
    int member = AT_EVENT;
    while ((member = next_of_event(s, &event, member, &reading)) != CLOSED)
        if (member < 0 || take_member(s, &event, member) < 0) return -1;
    event.value[C_EVENT_END] = s->at - s->begin;
    s->events++;
    if (event.phase == 0) return -1; /* also where it has nothing at all */
    return event.phase == 'X' ? keep_event(s, &event) : 0;
}

static int take_chunk(Scan *s) {
    for (;;) {
        skip_space(s);
        if (take_event(s) < 0) return -1;
        skip_space(s);
        if (s->at == s->end) return 0;
        if (take(s, ',') < 0) return -1;
    }
}

/* ---- Python --------------------------------------------------------------------- */

/* The strings that a chunk brought, as bytes: escapes are the caller's to resolve. */
static PyObject *new_names(const Table *table, Py_ssize_t from) {
    PyObject *names = PyList_New(table->count - from);
    if (names == NULL) return NULL;
    for (Py_ssize_t i = from; i < table->count; i++) {
        PyObject *name
            = PyBytes_FromStringAndSize(table->items[i].text, table->items[i].length);
        if (name == NULL) {
            Py_DECREF(names);
            return NULL;
        }
        PyList_SET_ITEM(names, i - from, name);
    }
    return names;
}

/* How many complete events there were of each category that is not kept. */
static PyObject *unread_of(const Scan *s) {
    PyObject *found = PyDict_New();
    for (int i = 0; found != NULL && i < s->unreads; i++) {
        const Unread *one = &s->unread[i];
        PyObject *cat = PyUnicode_FromStringAndSize(one->text, one->length);
        PyObject *events = PyLong_FromLongLong(one->events);
        if (cat == NULL || events == NULL || PyDict_SetItem(found, cat, events) < 0)
            Py_CLEAR(found);
        Py_XDECREF(cat);
        Py_XDECREF(events);
    }
    return found;
}

/* How many rows a table has, and its columns, which are handed over. */
static PyObject *table_of(Rows *rows, int table) {
    PyObject *columns = PyTuple_New(LAYOUT[table].columns);
    if (columns == NULL) return NULL;
    for (int i = 0; i < LAYOUT[table].columns; i++) {
        PyTuple_SET_ITEM(columns, i, rows->block[i]);
        rows->block[i] = NULL;
    }
    return Py_BuildValue("(nN)", rows->rows, columns);
}

static PyObject *pids_of(const Scan *s) {
    PyObject *pids = PyList_New(s->op_pids);
    for (int i = 0; pids != NULL && i < s->op_pids; i++) {
        PyObject *pid = PyLong_FromLongLong(s->op_pid[i]);
        if (pid == NULL) Py_CLEAR(pids);
        else PyList_SET_ITEM(pids, i, pid);
    }
    return pids;
}

static PyObject *result_of(Scan *s, const Table *table, Py_ssize_t from) {
    PyObject *names = new_names(table, from), *unread = unread_of(s);
    PyObject *pids = pids_of(s), *found[TABLES] = {NULL};
    int whole = names != NULL && unread != NULL && pids != NULL;
    for (int i = 0; i < TABLES && whole; i++) {
        found[i] = table_of(&s->rows[i], i);
        whole = found[i] != NULL;
    }
    if (!whole) {
        for (int i = 0; i < TABLES; i++) Py_XDECREF(found[i]);
        Py_XDECREF(pids);
        Py_XDECREF(unread);
        Py_XDECREF(names);
        return NULL;
    }
    return Py_BuildValue(
        "(LNNNNN)", (long long)s->events, names, found[EVENTS], found[OPS], pids, unread);
}

static PyObject *scanner_scan(Scanner *self, PyObject *chunk) {
    if (!PyBytes_Check(chunk)) {
        PyErr_SetString(PyExc_TypeError, "a chunk is bytes");
        return NULL;
    }
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "a scanner is for one thread at a time");
        return NULL;
    }
    Scan scan;
    memset(&scan, 0, sizeof scan);
    scan.begin = scan.at = PyBytes_AS_STRING(chunk);
    scan.end = scan.begin + PyBytes_GET_SIZE(chunk);
    scan.scanner = self;
    const Py_ssize_t known = self->names.count;
    int outcome;
    self->busy = 1;
    Py_INCREF(chunk);
    scan.thread = PyEval_SaveThread();
    outcome = scan.end - scan.begin > MAX_CHUNK_BYTES || grow(&scan, EVENTS) < 0
            || grow(&scan, OPS) < 0
        ? -1 : take_chunk(&scan);
    if (outcome < 0 && table_truncate(&self->names, known) < 0) scan.failed_memory = 1;
    PyEval_RestoreThread(scan.thread);
    Py_DECREF(chunk);
    self->busy = 0;
    for (int i = 0; i < TABLES && outcome == 0; i++)
        if (scan.rows[i].rows > self->most_rows[i])
            self->most_rows[i] = scan.rows[i].rows;
    PyObject *result = NULL;
    if (scan.failed_memory) PyErr_NoMemory();
    else if (outcome < 0) result = Py_NewRef(Py_None);
    else result = result_of(&scan, &self->names, known);
    for (int i = 0; i < TABLES; i++)
        for (int j = 0; j < LAYOUT[i].columns; j++) Py_XDECREF(scan.rows[i].block[j]);
    return result;
}

static void scanner_dealloc(Scanner *self) {
    PyTypeObject *type = Py_TYPE(self);
    for (Py_ssize_t i = 0; i < self->names.count; i++)
        free((void *)self->names.items[i].text);
    free(self->names.items);
    free(self->names.slots);
    for (int i = 0; i < self->categories; i++) free(self->category[i]);
    for (int i = 0; i < self->prefixes; i++) free(self->kept[i]);
    type->tp_free(self);
    Py_DECREF(type);
}

/* A string's text, which is the caller's to free; NULL with an exception. */
static char *copy_of(PyObject *text, Py_ssize_t *length) {
    const char *from = PyUnicode_AsUTF8AndSize(text, length);
    if (from == NULL) return NULL;
    char *copy = malloc((size_t)*length + 1);
    if (copy == NULL) PyErr_NoMemory();
    else memcpy(copy, from, (size_t)*length + 1);
    return copy;
}

static int add_category(Scanner *self, PyObject *key, PyObject *value) {
    Py_ssize_t length;
    const long id = PyLong_AsLong(value);
    if (id == -1 && PyErr_Occurred()) return -1;
    char *copy = copy_of(key, &length);
    if (copy == NULL) return -1;
    self->category[self->categories] = copy;
    self->category_length[self->categories] = (size_t)length;
    self->category_id[self->categories++] = (int)id;
    return 0;
}

/* A file is read in blocks of some megabytes, which glibc by default maps anew for each
   and gives back after it: zeroing their pages took a fifth of the time of a scan. */
static void keep_blocks(void) {
#if defined(__GLIBC__)
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 32 << 20);
#endif
}

static int scanner_init(Scanner *self, PyObject *args, PyObject *kwargs) {
    PyObject *categories, *kept, *key, *value;
    Py_ssize_t position = 0, length;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "Scanner takes no keyword arguments");
        return -1;
    }
    if (!PyArg_ParseTuple(
            args, "O!iiO!", &PyDict_Type, &categories, &self->operator,
            &self->annotation, &PyTuple_Type, &kept))
        return -1;
    if (self->names.items != NULL || self->categories > 0 || self->prefixes > 0
        || PyDict_GET_SIZE(categories) > MAX_CATEGORIES
        || PyTuple_GET_SIZE(kept) > MAX_PREFIXES) {
        PyErr_SetString(
            PyExc_ValueError, "initialised before, or too many categories or prefixes");
        return -1;
    }
    while (PyDict_Next(categories, &position, &key, &value))
        if (add_category(self, key, value) < 0) return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kept); i++) {
        char *prefix = copy_of(PyTuple_GET_ITEM(kept, i), &length);
        if (prefix == NULL) return -1;
        self->kept[self->prefixes++] = prefix;
    }
    keep_blocks();
    self->names.capacity = 256;
    self->names.items = malloc(256 * sizeof *self->names.items);
    if (self->names.items == NULL || table_rehash(&self->names, 1024) < 0) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static PyMethodDef scanner_methods[] = {
    {"scan", (PyCFunction)scanner_scan, METH_O,
     "Of a chunk: how many events, the new names, the events' and the operators' rows "
     "and columns, the processes of operators without a row, and the unread categories; "
     "None where msgspec must read it."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot scanner_slots[] = {
    {Py_tp_doc, "Scans the chunks of one trace. Names get ids over all of them."},
    {Py_tp_init, scanner_init},
    {Py_tp_dealloc, scanner_dealloc},
    {Py_tp_methods, scanner_methods},
    {Py_tp_new, PyType_GenericNew},
    {0, NULL},
};

static PyType_Spec scanner_spec = {
    .name = "fsdpdoctor._scan.Scanner",
    .basicsize = sizeof(Scanner),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = scanner_slots,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "fsdpdoctor._scan",
    .m_doc = "The fast twin of importers/reader/decode_json.py.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__scan(void) {
    PyObject *self = PyModule_Create(&module);
    if (self == NULL) return NULL;
    PyObject *scanner = PyType_FromSpec(&scanner_spec);
    if (scanner == NULL || PyModule_AddObjectRef(self, "Scanner", scanner) < 0
        || PyModule_AddIntConstant(self, "COLUMNS", COLUMNS) < 0
        || PyModule_AddIntConstant(self, "OP_COLUMNS", OP_COLUMNS) < 0
        || PyModule_AddIntConstant(self, "VERSION", VERSION) < 0) {
        Py_XDECREF(scanner);
        Py_DECREF(self);
        return NULL;
    }
    Py_DECREF(scanner);
    return self;
}
