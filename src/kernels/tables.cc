// The ordered lists of implementations of every group of kernels.
#include "kernels/activation.h"
#include "kernels/norm.h"
#include "kernels/registry.h"
#include "kernels/simd_tables.h"
#include "kernels/softmax.h"
#include "kernels/vector.h"

namespace qkv::inline v0::kernels {

namespace {
constexpr Implementation<ActivationKernels<float>> kActivation[] = {
    {kReference, Isa::kGeneric, &reference::kActivationF32}};
constexpr Implementation<NormKernels<float>> kNorm[] = {
    {kReference, Isa::kGeneric, &reference::kNormF32}};
constexpr Implementation<SoftmaxKernels<float>> kSoftmax[] = {
    {kReference, Isa::kGeneric, &reference::kSoftmaxF32}};
constexpr Implementation<VectorKernels<float>> kVector[] = {
    {kReference, Isa::kGeneric, &reference::kVectorF32}};
}  // namespace

template <>
const ActivationKernels<float>& activation_kernels<float>() {
  return pick<ActivationKernels<float>>(kActivation);
}
template <>
const NormKernels<float>& norm_kernels<float>() {
  return pick<NormKernels<float>>(kNorm);
}
template <>
const SoftmaxKernels<float>& softmax_kernels<float>() {
  return pick<SoftmaxKernels<float>>(kSoftmax);
}
template <>
const VectorKernels<float>& vector_kernels<float>() {
  return pick<VectorKernels<float>>(kVector);
}

// fp64 is for checking: the reference alone.
template <>
const ActivationKernels<double>& activation_kernels<double>() {
  return reference::kActivationF64;
}
template <>
const NormKernels<double>& norm_kernels<double>() {
  return reference::kNormF64;
}
template <>
const SoftmaxKernels<double>& softmax_kernels<double>() {
  return reference::kSoftmaxF64;
}
template <>
const VectorKernels<double>& vector_kernels<double>() {
  return reference::kVectorF64;
}

}  // namespace qkv::inline v0::kernels
