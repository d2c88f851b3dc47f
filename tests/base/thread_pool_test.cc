#include "base/thread_pool.h"

#include <atomic>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "qkv/error.h"

#include "base/cgroup.h"
#include "support/files.h"
#include "support/process.h"

namespace {
using namespace qkv;

class ThreadPool : public ::testing::Test {
 protected:
  void TearDown() override { set_num_threads(before_); }
  int before_ = num_threads();
};

TEST_F(ThreadPool, b79_quotas_are_read) {
  EXPECT_EQ(parse_cpu_max("200000 100000"), 2);
  EXPECT_EQ(parse_cpu_max("765000 100000"), 7.65);
  EXPECT_EQ(parse_cpu_max("50000 100000"), 0.5);
  EXPECT_EQ(parse_cpu_max("max 100000"), 0);
  for (const char* garbage :
       {"", "x", "100000", "100000 x", "-1 100000", "100000 0", "0 100000", "nan 1", "inf 1"}) {
    EXPECT_EQ(parse_cpu_max(garbage), 0) << garbage;
  }
}

TEST_F(ThreadPool, b79_the_quota_of_the_own_group_and_its_parents_counts) {
  const qkv::testing::TempFolder folder;
  const auto group = [&](const std::string& name, const std::string& quota,
                         const std::string& period) {
    std::filesystem::create_directories(folder / name);
    if (period.empty()) {
      folder.write(name + "/cpu.max", quota + "\n");
    } else {
      folder.write(name + "/cpu.cfs_quota_us", quota + "\n");
      folder.write(name + "/cpu.cfs_period_us", period + "\n");
    }
  };
  const auto quota = [&](const std::string& groups) { return cgroup_quota(groups, folder.path()); };
  group("cpu", "-1", "100000");
  group("cpu/job", "150000", "100000");
  group("cpu/job/part", "-1", "100000");
  EXPECT_EQ(quota("4:memory:/job\n1:cpu:/\n0::/\n"), 0);
  EXPECT_EQ(quota("1:cpu:/job\n"), 1.5);
  EXPECT_EQ(quota("1:cpu:/job/part\n0::/\n"), 1.5);  // a parent's
  EXPECT_EQ(quota("1:cpuset:/job\n"), 0);
  group("cpu,cpuacct", "50000", "100000");
  EXPECT_EQ(quota("3:cpu,cpuacct:/docker/of/the/host\n"), 0.5);  // only the mount is seen
  group("slice", "300000 100000", "");
  group("slice/service", "max 100000", "");
  EXPECT_EQ(quota("0::/slice/service\n"), 3);
  group("unified/job", "200000 100000", "");
  EXPECT_EQ(quota("0::/job\n"), 2);
  for (const char* garbage : {"", "x", "::", ":cpu:", "1:cpu", "0::nothing"})
    EXPECT_EQ(quota(garbage), 0) << garbage;
}

TEST_F(ThreadPool, b79_the_budget_is_the_smaller_of_mask_and_quota) {
  const CpuBudget budget = cpu_budget();
  EXPECT_GE(budget.threads, 1);
  EXPECT_LE(budget.threads, budget.affinity);
  if (budget.quota >= 1) {
    EXPECT_LE(budget.threads, budget.quota);
  }
}

TEST_F(ThreadPool, b79_the_affinity_mask_counts) {
  const pid_t child = ::fork();
  if (child == 0) {
    cpu_set_t allowed, one;
    ::sched_getaffinity(0, sizeof allowed, &allowed);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &one);
    }
    ::sched_setaffinity(0, sizeof one, &one);
    ::_exit(cpu_budget().affinity == 1 && cpu_budget().threads == 1 ? 0 : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

qkv::testing::Finished run_self(const std::string& threads) {
  return qkv::testing::run_program(
      {"/proc/self/exe", "--gtest_filter=Cpu.names"},
      {.input = "", .environment = {"QKV_NUM_THREADS=" + threads}, .folder = ""});
}

TEST_F(ThreadPool, b79_the_environment_wins_over_the_machine) {
  const qkv::testing::Finished run = run_self("3");
  EXPECT_EQ(run.status, 0);
  EXPECT_NE(run.out.find("threads 3: QKV_NUM_THREADS"), std::string::npos) << run.out;
}

TEST_F(ThreadPool, a_bad_thread_count_in_the_environment_is_refused) {
  for (const char* value : {"0", "-1", "two", "3x", "99999999"}) {
    const qkv::testing::Finished run = run_self(value);
    EXPECT_NE(run.status, 0) << value;
    EXPECT_NE(run.err.find("expected QKV_NUM_THREADS from 1 to 1024, got"), std::string::npos)
        << run.err;
  }
}

TEST_F(ThreadPool, b79_an_explicit_count_wins) {
  set_num_threads(5);
  EXPECT_EQ(num_threads(), 5);
  EXPECT_EQ(num_threads_reason(), "5: set by the caller");
  EXPECT_THROW(set_num_threads(0), ArgumentError);
  EXPECT_THROW(set_num_threads(1025), ArgumentError);
  EXPECT_EQ(num_threads(), 5);
}

TEST_F(ThreadPool, every_item_once_with_any_number_of_threads) {
  for (const int threads : {1, 2, 3, 8}) {
    set_num_threads(threads);
    for (const std::int64_t n : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<std::size_t>(n));
      parallel_for(n, [&](std::int64_t i) { ++hits[static_cast<std::size_t>(i)]; });
      for (const std::atomic<int>& hit : hits) ASSERT_EQ(hit, 1);
    }
    parallel_for(-3, [&](std::int64_t) { FAIL(); });
  }
}

TEST_F(ThreadPool, chunks_cover_the_range) {
  set_num_threads(3);
  std::vector<std::atomic<int>> hits(1000);
  std::atomic<int> calls = 0;
  parallel_chunks(1000, 64, [&](std::int64_t begin, std::int64_t end) {
    ++calls;
    EXPECT_EQ(begin % 64, 0);
    EXPECT_TRUE(end == begin + 64 || end == 1000);
    for (std::int64_t i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
  });
  EXPECT_EQ(calls, 16);
  for (const std::atomic<int>& hit : hits) ASSERT_EQ(hit, 1);
}

TEST_F(ThreadPool, nested_loops_run_inline) {
  set_num_threads(4);
  EXPECT_FALSE(in_parallel());
  std::atomic<int> count = 0, strangers = 0;
  parallel_for(8, [&](std::int64_t) {
    EXPECT_TRUE(in_parallel());
    const std::thread::id outer = std::this_thread::get_id();
    parallel_for(8, [&](std::int64_t) {
      ++count;
      strangers += std::this_thread::get_id() != outer;
    });
  });
  EXPECT_EQ(count, 64);
  EXPECT_EQ(strangers, 0);
  EXPECT_FALSE(in_parallel());
}

TEST_F(ThreadPool, exceptions_reach_the_caller_and_the_pool_lives_on) {
  for (const int threads : {1, 4}) {
    set_num_threads(threads);
    for (int round = 0; round < 50; ++round) {
      try {
        parallel_for(100, [&](std::int64_t i) {
          if (i == 13) throw std::runtime_error("item 13");
        });
        FAIL();
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "item 13");
      }
      EXPECT_FALSE(in_parallel());
    }
    std::atomic<int> count = 0;
    parallel_for(100, [&](std::int64_t) { ++count; });
    EXPECT_EQ(count, 100);
  }
}

TEST_F(ThreadPool, takes_several_callers_at_once) {
  set_num_threads(3);
  std::vector<std::thread> callers;
  std::atomic<std::int64_t> sum = 0;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        parallel_for(50, [&](std::int64_t i) { sum += i; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 4 * 200 * (49 * 50 / 2));
}

TEST_F(ThreadPool, works_in_a_forked_child) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not let a forked child start threads";
#endif
  set_num_threads(3);
  std::atomic<int> count = 0;
  parallel_for(100, [&](std::int64_t) { ++count; });
  const pid_t child = ::fork();
  if (child == 0) {
    std::atomic<int> inner = 0;
    parallel_for(100, [&](std::int64_t) { ++inner; });
    ::_exit(inner == 100 ? 0 : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  parallel_for(100, [&](std::int64_t) { ++count; });
  EXPECT_EQ(count, 200);
}

}  // namespace
