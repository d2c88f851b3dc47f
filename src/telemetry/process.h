// What this process uses of the machine. Thread-safe; zeros where the system does not say.
#pragma once

#include <cstdint>

namespace qkv::inline v0::telemetry {

double cpu_seconds();                // user and system time of all threads
std::int64_t resident_bytes();       // memory in RAM now
std::int64_t peak_resident_bytes();  // the most so far
double unix_time();                  // seconds since 1970

}  // namespace qkv::inline v0::telemetry
