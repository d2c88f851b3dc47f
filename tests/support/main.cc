// main() of every test program: says on what it runs, then runs the tests.
#include <cstdio>

#include <gtest/gtest.h>

#include "qkv/threads.h"

#include "base/cpu.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (!testing::GTEST_FLAG(list_tests)) {
    std::printf("isa %s, threads %s\n", qkv::active_isa_reason().c_str(),
                qkv::num_threads_reason().c_str());
  }
  return RUN_ALL_TESTS();
}
