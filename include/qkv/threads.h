// Threads of the library: one pool for the whole process.
#pragma once

#include <string>

#include "qkv/version.h"

namespace qkv::inline v0 {

// Threads that a parallel loop may use, the caller's included. Default: QKV_NUM_THREADS, else
// min(affinity mask, cgroup quota rounded down), at least 1. Thread-safe.
QKV_API int num_threads();

// Sets it (1 <= n <= 1024, else ArgumentError). Not while another thread runs a loop. More threads
// than cores are allowed.
QKV_API void set_num_threads(int n);

// Why num_threads() is what it is, in plain English, e.g. "2: affinity mask 2, no cgroup quota".
QKV_API std::string num_threads_reason();

}  // namespace qkv::inline v0
