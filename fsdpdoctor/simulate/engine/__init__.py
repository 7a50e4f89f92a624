"""One step replayed: opcodes, lanes, time, memory."""
