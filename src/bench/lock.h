// One benchmark at a time.
#pragma once

namespace qkv::inline v0::bench {

// Holds an exclusive lock while it lives, so that benchmarks of one user never run beside each
// other: a file in $XDG_RUNTIME_DIR or the folder for temporary files. Waits for another benchmark,
// and says so through log_message. IoError where the file cannot be opened or locked.
//
// A benchmark that holds the lock and runs another as a part of itself (bench/compare_attention.py)
// passes its open file down and names it in QKV_BENCH_LOCK_FD: the two then hold one lock.
class BenchLock {
 public:
  BenchLock();
  ~BenchLock();
  BenchLock(const BenchLock&) = delete;
  BenchLock& operator=(const BenchLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace qkv::inline v0::bench
