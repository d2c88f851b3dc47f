// The machine, and what qkv uses of it and why.
#pragma once

#include "base/json.h"

namespace qkv::inline v0::bench {

// {"version", "processor", "features", "isa", "isa_reason", "bf16_attention", "threads",
// "threads_reason", "cores", "core_quota", "memory_bytes", "memory_available_bytes",
// "memory_limit_bytes", "libraries"}; with `measure` also "peaks", what the machine gives now on
// all threads, which takes some 0.2 s.
Json describe_machine(bool measure);

}  // namespace qkv::inline v0::bench
