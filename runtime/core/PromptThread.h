// Threads that mostly wait and compute little, beside threads that compute: the
// streams of communication of ranks that share cores with computing ones.
#pragma once

namespace merak::runtime {

// Makes this thread brief: it asks the system for short turns, and so gets a
// core soon after it is woken, from a thread that computes; with ordinary turns
// it would wait for the end of the other's, milliseconds (Linux 6.12 and newer,
// EEVDF; no effect elsewhere).
void wakePromptly();

// Whether this thread is. Brief threads must not yield while they wait: they
// would then stand behind those that compute. They sleep, and are woken.
bool wakesPromptly();

// What training goes before: this thread gets cores that nothing else wants.
void stepBehind();

} // namespace merak::runtime
