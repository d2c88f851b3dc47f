// qkv bench as a user sees it.
#include <chrono>
#include <string>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "support/files.h"
#include "support/process.h"
#include "support/strings.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

// A folder whose lock this test holds, as bench/compare_attention.py does. Programs that are run
// inherit the descriptor.
class HeldLock {
 public:
  HeldLock()
      : fd_(::open((folder_ / fmt::format("qkv-bench-{}.lock", ::getuid())).c_str(),
                   O_CREAT | O_RDWR, 0600)) {
    EXPECT_EQ(::flock(fd_, LOCK_EX), 0);
  }
  ~HeldLock() { ::close(fd_); }
  std::string folder() const { return "XDG_RUNTIME_DIR=" + folder_.path().string(); }
  std::string descriptor() const { return fmt::format("QKV_BENCH_LOCK_FD={}", fd_); }

 private:
  TempFolder folder_;
  int fd_;
};

// A quick benchmark that is killed after `seconds`.
Finished bench_for(int seconds, std::vector<std::string> environment) {
  RunOptions options;
  options.environment = std::move(environment);
  options.signal = SIGKILL;
  options.signal_when = [end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds)] {
    return std::chrono::steady_clock::now() > end;
  };
  return run_qkv({"bench", "gemm", "--quick", "--json"}, options);
}

}  // namespace

TEST(BenchVerb, quick_run_writes_json_and_plot) {
  const TempFolder folder;
  const Finished run =
      run_qkv({"bench", "gemm", "--quick", "--json", "--out", folder.path().string()},
              {.environment = {"XDG_RUNTIME_DIR=" + folder.path().string()}});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(has(run.out, "\"peak_share\"")) << run.out;
  EXPECT_GT(Json::parse(read_file(folder / "gemm.json")).at("records").size(), 0u);
  EXPECT_TRUE(has(read_file(folder / "gemm.svg"), "</svg>"));
}

TEST(BenchVerb, waits_for_another_benchmark_and_says_so) {
  const HeldLock lock;
  // The descriptor that a stranger's variable names is not the lock's: it changes nothing.
  const Finished run = bench_for(2, {lock.folder(), "QKV_BENCH_LOCK_FD=1"});
  EXPECT_EQ(run.status, 128 + SIGKILL);
  EXPECT_EQ(run.out, "");
  EXPECT_TRUE(has(run.err, "another benchmark is running, waiting for it")) << run.err;
}

TEST(BenchVerb, part_of_a_benchmark_does_not_wait_for_it) {
  const HeldLock lock;
  const Finished run = bench_for(120, {lock.folder(), lock.descriptor()});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(has(run.out, "\"peak_share\"")) << run.out;
  EXPECT_FALSE(has(run.err, "waiting")) << run.err;
}

TEST(BenchVerb, wrong_names_and_options_are_refused) {
  EXPECT_EQ(run_qkv({"bench", "atention"}).status, 2);
  EXPECT_EQ(run_qkv({"bench", "train", "--turns"}).status, 2);
  EXPECT_EQ(run_qkv({"bench", "train", "--config", "x.toml"}).status, 2);
}
