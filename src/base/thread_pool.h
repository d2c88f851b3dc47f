// parallel_for over the process's one thread pool.
//
// Work items are handed out dynamically, so the result must not depend on which thread runs an
// item, nor on how many threads there are: cut work by shape only. The caller takes part. Nested
// calls run inline. Several threads may call at once. The first exception thrown by an item is
// rethrown in the caller; later items are then skipped. After fork() the child starts a new pool.
#pragma once

#include <cstdint>

#include "qkv/threads.h"

#include "base/function_ref.h"

namespace qkv::inline v0 {

// Calls body(i) once for each i in [0, n).
void parallel_for(std::int64_t n, FunctionRef<void(std::int64_t)> body);

// Calls body(begin, end) on consecutive chunks of `chunk` items (the last may be shorter) of [0,
// n).
void parallel_chunks(std::int64_t n, std::int64_t chunk,
                     FunctionRef<void(std::int64_t, std::int64_t)> body);

// True inside a parallel_for body.
bool in_parallel();

// Cores this process may use, and how that was found. Parsers are separate for tests.
struct CpuBudget {
  int affinity = 1;  // CPUs in the affinity mask
  double quota = 0;  // cgroup quota in cores; 0: unlimited
  int threads = 1;   // min(affinity, floor(quota)), at least 1
};
CpuBudget cpu_budget();
// Text of cgroup v2 cpu.max ("200000 100000", "max 100000") to cores; 0 for unlimited or unreadable
// text.
double parse_cpu_max(const char* text);

}  // namespace qkv::inline v0
