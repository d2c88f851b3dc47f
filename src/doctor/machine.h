// Kernels of this processor against the reference in double precision.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "qkv/doctor.h"

namespace qkv::inline v0::doctor {

// One operation on fixed inputs. The inputs are numbers that fp32 holds exactly, so that the run in
// fp64, which takes the reference kernels, is the truth.
struct KernelCase {
  std::string name;  // "attention causal, forward and backward"
  double tolerance;  // max |difference| / max |reference|
  std::function<std::vector<Tensor>(DType)> run;
};
std::vector<KernelCase> kernel_cases();

struct KernelCheck {
  std::string name, implementation;  // "avx512"
  double error = 0, tolerance = 0;
  bool good() const { return error <= tolerance; }  // false for NaN
};
// Every case with every implementation that may run in this process. Not thread-safe: it forces
// implementations for the whole process while it runs.
std::vector<KernelCheck> compare_kernels(const std::vector<KernelCase>& cases);
Report kernel_report(const std::vector<KernelCheck>& checks);

}  // namespace qkv::inline v0::doctor
