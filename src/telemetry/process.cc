#include "telemetry/process.h"

#include <chrono>
#include <cstdio>

#include <sys/resource.h>
#include <unistd.h>

namespace qkv::inline v0::telemetry {

double cpu_seconds() {
  rusage use{};
  if (getrusage(RUSAGE_SELF, &use) != 0) return 0;
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

std::int64_t resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  long long total = 0, resident = 0;
  const int read = std::fscanf(file, "%lld %lld", &total, &resident);
  std::fclose(file);
  return read == 2 ? static_cast<std::int64_t>(resident) * sysconf(_SC_PAGESIZE) : 0;
}

std::int64_t peak_resident_bytes() {
  rusage use{};
  return getrusage(RUSAGE_SELF, &use) == 0 ? static_cast<std::int64_t>(use.ru_maxrss) * 1024 : 0;
}

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace qkv::inline v0::telemetry
