#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <thread>
#include <vector>

#include <fmt/core.h>
#include <pthread.h>
#include <sched.h>

#include "base/cgroup.h"
#include "base/check.h"

namespace qkv::inline v0 {
namespace {

// One parallel loop. Lives on the caller's stack: the caller leaves only after every worker has
// left it.
struct Job {
  std::int64_t n = 0;
  const FunctionRef<void(std::int64_t)>* body = nullptr;
  std::atomic<std::int64_t> next{0};
  std::atomic<bool> failed{false};
  int workers = 0;  // workers inside; guarded by the pool's mutex
  std::exception_ptr error;
  std::mutex error_mutex;

  void run() {
    for (;;) {
      const std::int64_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= n || failed.load(std::memory_order_relaxed)) return;
      try {
        (*body)(i);
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
        failed = true;
      }
    }
  }
  bool open() const {
    return next.load(std::memory_order_relaxed) < n && !failed.load(std::memory_order_relaxed);
  }
};

thread_local bool t_in_parallel = false;

void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

class Pool {
 public:
  explicit Pool(int threads) : threads_(threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
  }
  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      generation_.fetch_add(1);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }
  int threads() const { return threads_; }

  void run(Job& job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(&job);
      generation_.fetch_add(1, std::memory_order_release);
    }
    if (sleepers_.load() > 0) wake_.notify_all();
    t_in_parallel = true;
    job.run();
    t_in_parallel = false;
    std::unique_lock lock(mutex_);
    jobs_.erase(std::find(jobs_.begin(), jobs_.end(), &job));
    if (job.workers > 0) {
      lock.unlock();
      for (int i = 0; i < kSpins;
           ++i) {  // the last items usually end within microseconds of one another
        spin_pause();
        if (lock.try_lock()) {
          if (job.workers == 0) return;
          lock.unlock();
        }
      }
      lock.lock();
      done_.wait(lock, [&] { return job.workers == 0; });
    }
  }

 private:
  static constexpr int kSpins = 400;
  static constexpr int kIdleSpins =
      4000;  // some 50 us: the gap between two kernels of a training step

  void work() {
    t_in_parallel = true;
    std::uint64_t seen = 0;
    for (;;) {
      for (int i = 0; i < kIdleSpins && generation_.load(std::memory_order_acquire) == seen; ++i)
        spin_pause();
      std::unique_lock lock(mutex_);
      if (generation_.load() == seen && !stop_) {
        sleepers_.fetch_add(1);
        wake_.wait(lock, [&] { return generation_.load() != seen || stop_; });
        sleepers_.fetch_sub(1);
      }
      if (stop_) return;
      seen = generation_.load();
      for (Job* job = open_job(); job != nullptr; job = open_job()) {
        ++job->workers;
        lock.unlock();
        job->run();
        lock.lock();
        if (--job->workers == 0) done_.notify_all();
      }
    }
  }
  Job* open_job() {
    for (Job* job : jobs_) {
      if (job->open()) return job;
    }
    return nullptr;
  }

  int threads_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<Job*> jobs_;
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<int> sleepers_{0};
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

struct Settings {
  std::mutex mutex;
  Pool* pool = nullptr;
  int threads = 0;  // 0: not asked yet
  std::string reason;
};
Settings& settings() {
  static auto* s = new Settings;  // never destroyed: threads may run loops during exit
  return *s;
}

void after_fork_in_child() {
  // The workers are gone; their pool cannot be joined, so it is left behind. The mutex may be held
  // by a vanished thread.
  Settings& s = settings();
  new (&s.mutex) std::mutex;
  s.pool = nullptr;
  t_in_parallel = false;
}

void choose_threads(Settings& s) {
  if (s.threads > 0) return;
  const CpuBudget budget = cpu_budget();
  s.threads = budget.threads;
  s.reason = fmt::format("{}: affinity mask {}, {}", budget.threads, budget.affinity,
                         budget.quota > 0 ? fmt::format("cgroup quota {:.2f} cores", budget.quota)
                                          : std::string("no cgroup quota"));
  if (const char* text = std::getenv("QKV_NUM_THREADS"); text != nullptr && *text != '\0') {
    char* end = nullptr;
    const long n = std::strtol(text, &end, 10);
    if (*end != '\0' || n < 1 || n > 1024) {
      fail<ArgumentError>("threads", "expected QKV_NUM_THREADS from 1 to 1024, got '{}'", text);
    }
    s.threads = static_cast<int>(n);
    s.reason = fmt::format("{}: QKV_NUM_THREADS", n);
  }
}

Pool& pool() {
  Settings& s = settings();
  const std::lock_guard lock(s.mutex);
  choose_threads(s);
  if (s.pool == nullptr) {
    static const int registered = pthread_atfork(nullptr, nullptr, after_fork_in_child);
    (void)registered;
    s.pool = new Pool(s.threads);
  }
  return *s.pool;
}

}  // namespace

double parse_cpu_max(const char* text) {
  if (std::strncmp(text, "max", 3) == 0) return 0;
  char* end = nullptr;
  const double quota = std::strtod(text, &end);
  if (end == text) return 0;
  char* end2 = nullptr;
  const double period = std::strtod(end, &end2);
  if (end2 == end || !(quota > 0) || !(period > 0) || !std::isfinite(quota / period)) return 0;
  return quota / period;
}

CpuBudget cpu_budget() {
  CpuBudget budget;
  cpu_set_t set;
  CPU_ZERO(&set);
  budget.affinity = sched_getaffinity(0, sizeof set, &set) == 0
                        ? CPU_COUNT(&set)
                        : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::ifstream own("/proc/self/cgroup");
  budget.quota = cgroup_quota({std::istreambuf_iterator<char>(own), {}},
                              std::filesystem::path("/sys/fs/cgroup"));
  budget.threads = budget.affinity;
  if (budget.quota > 0)
    budget.threads = std::min(budget.threads, static_cast<int>(std::floor(budget.quota)));
  budget.threads = std::max(1, budget.threads);
  return budget;
}

int num_threads() {
  Settings& s = settings();
  const std::lock_guard lock(s.mutex);
  choose_threads(s);
  return s.threads;
}

std::string num_threads_reason() {
  Settings& s = settings();
  const std::lock_guard lock(s.mutex);
  choose_threads(s);
  return s.reason;
}

void set_num_threads(int n) {
  require<ArgumentError>(n >= 1 && n <= 1024, "threads",
                         "expected a thread count from 1 to 1024, got {}", n);
  Settings& s = settings();
  Pool* old = nullptr;
  {
    const std::lock_guard lock(s.mutex);
    if (s.pool != nullptr && s.pool->threads() != n) std::swap(old, s.pool);
    s.threads = n;
    s.reason = fmt::format("{}: set by the caller", n);
  }
  delete old;
}

bool in_parallel() { return t_in_parallel; }

void parallel_for(std::int64_t n, FunctionRef<void(std::int64_t)> body) {
  if (n <= 0) return;
  if (n == 1 || t_in_parallel) {
    for (std::int64_t i = 0; i < n; ++i) body(i);
    return;
  }
  Pool& p = pool();
  if (p.threads() == 1) {
    t_in_parallel = true;
    struct Reset {
      ~Reset() { t_in_parallel = false; }
    } reset;
    for (std::int64_t i = 0; i < n; ++i) body(i);
    return;
  }
  Job job;
  job.n = n;
  job.body = &body;
  p.run(job);
  if (job.error) std::rethrow_exception(job.error);
}

void parallel_chunks(std::int64_t n, std::int64_t chunk,
                     FunctionRef<void(std::int64_t, std::int64_t)> body) {
  if (n <= 0) return;
  parallel_for((n + chunk - 1) / chunk,
               [&](std::int64_t i) { body(i * chunk, std::min(n, (i + 1) * chunk)); });
}

}  // namespace qkv::inline v0
