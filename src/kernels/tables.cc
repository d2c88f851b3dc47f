// The ordered lists of implementations of every group of kernels.
#include "kernels/activation.h"
#include "kernels/norm.h"
#include "kernels/product.h"
#include "kernels/registry.h"
#include "kernels/simd_tables.h"
#include "kernels/softmax.h"
#include "kernels/vector.h"

namespace qkv::inline v0::kernels {

QKV_SIMD_TABLE(ActivationKernels<float>, kActivation)
QKV_SIMD_TABLE(NormKernels<float>, kNorm)
QKV_SIMD_TABLE(ProductKernels, kProduct)
QKV_SIMD_TABLE(SoftmaxKernels<float>, kSoftmax)
QKV_SIMD_TABLE(VectorKernels<float>, kVector)

namespace {
constexpr Implementation<ActivationKernels<float>> kActivations[] = {
    QKV_SIMD_LIST(kActivation), {kReference, Isa::kGeneric, &reference::kActivationF32}};
constexpr Implementation<NormKernels<float>> kNorms[] = {
    QKV_SIMD_LIST(kNorm), {kReference, Isa::kGeneric, &reference::kNormF32}};
constexpr Implementation<ProductKernels> kProducts[] = {QKV_SIMD_LIST(kProduct),
                                                        {kReference, Isa::kGeneric, nullptr}};
constexpr Implementation<SoftmaxKernels<float>> kSoftmaxes[] = {
    QKV_SIMD_LIST(kSoftmax), {kReference, Isa::kGeneric, &reference::kSoftmaxF32}};
constexpr Implementation<VectorKernels<float>> kVectors[] = {
    QKV_SIMD_LIST(kVector), {kReference, Isa::kGeneric, &reference::kVectorF32}};
}  // namespace

template <>
const ActivationKernels<float>& activation_kernels<float>() {
  return pick<ActivationKernels<float>>(kActivations);
}
template <>
const NormKernels<float>& norm_kernels<float>() {
  return pick<NormKernels<float>>(kNorms);
}
template <>
const SoftmaxKernels<float>& softmax_kernels<float>() {
  return pick<SoftmaxKernels<float>>(kSoftmaxes);
}
template <>
const VectorKernels<float>& vector_kernels<float>() {
  return pick<VectorKernels<float>>(kVectors);
}

const ProductKernels* product_kernels() { return pick_or_null<ProductKernels>(kProducts); }

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
