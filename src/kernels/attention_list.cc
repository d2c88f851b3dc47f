#include "kernels/attention_list.h"

#include <type_traits>

#include <fmt/format.h>

#include "kernels/attention_decode.h"
#include "kernels/attention_flash.h"
#include "kernels/attention_pairs.h"
#include "kernels/reference/attention.h"
#include "kernels/registry.h"
#include "kernels/simd_tables.h"

namespace qkv::inline v0::kernels {

QKV_SIMD_TABLE(FlashTable, kFlashTable)
#if defined(__x86_64__)
namespace amx {
extern const FlashTable kPairTable;
}
namespace avx512_bf16 {
extern const FlashTable kPairTable;
}
#endif

namespace {

constexpr const char* kNaiveName = "naive";

template <class T>
std::string naive_refusal(const AttentionProblem<T>&) {
  return "";
}

template <const FlashTable& kTable, class T>
void forward_with(const AttentionProblem<T>& problem) {
  flash_forward(kTable, problem);
}
template <const FlashTable& kTable, class T>
void backward_with(const AttentionProblem<T>& problem) {
  flash_backward(kTable, problem);
}
template <Isa kIsa, class T>
std::string flash_refusal(const AttentionProblem<T>&) {
  if (std::is_same_v<T, BFloat16> && bf16_products_are_forced())
    return fmt::format("'{}' was asked for", forced_implementation());
  return refusal_of(isa_name(kIsa), kIsa);
}
template <Isa kIsa, class T>
std::string decode_refusal_of(const AttentionProblem<T>& problem) {
  const std::string reason = flash_refusal<kIsa>(problem);
  return reason.empty() ? decode_refusal(problem) : reason;
}

template <class T>
constexpr AttentionImplementation<T> naive() {
  return {kNaiveName, naive_refusal<T>, attention_reference<T>, attention_backward_reference<T>};
}
template <class T, const FlashTable& kTable, Isa kIsa>
constexpr AttentionImplementation<T> flash(const char* name) {
  return {name, flash_refusal<kIsa, T>, forward_with<kTable, T>, backward_with<kTable, T>};
}
// The same functions: they decode the sequences that are fit for it. Named apart where all are.
template <class T, const FlashTable& kTable, Isa kIsa>
constexpr AttentionImplementation<T> decode(const char* name) {
  return {name, decode_refusal_of<kIsa, T>, forward_with<kTable, T>, backward_with<kTable, T>};
}

#if defined(__x86_64__)
// Tiles of AMX, or what a test puts in their place.
std::string amx_refusal(const AttentionProblem<BFloat16>&) {
  if (PairTableScope::current() != nullptr) return "";
  return refusal_of("amx", Isa::kAmx);
}
std::string dot_refusal(const AttentionProblem<BFloat16>&) {
  const std::string reason = refusal_of("avx512_bf16", Isa::kAvx512Bf16);
  return reason.empty() && !bf16_products_are_forced() ? dot_product_refusal() : reason;
}
void amx_forward(const AttentionProblem<BFloat16>& problem) {
  const PairTableScope* scope = PairTableScope::current();
  if (scope != nullptr) return pairs_forward(scope->pairs(), scope->wide(), problem);
  pairs_forward(amx::kPairTable, avx512::kFlashTable, problem);
}
void dot_forward(const AttentionProblem<BFloat16>& problem) {
  pairs_forward(avx512_bf16::kPairTable, avx512::kFlashTable, problem);
}
void amx_backward(const AttentionProblem<BFloat16>& problem) {
  const PairTableScope* scope = PairTableScope::current();
  if (scope != nullptr) return pairs_backward(scope->pairs(), scope->wide(), problem);
  pairs_backward(amx::kPairTable, avx512::kFlashTable, problem);
}
void dot_backward(const AttentionProblem<BFloat16>& problem) {
  pairs_backward(avx512_bf16::kPairTable, avx512::kFlashTable, problem);
}
#endif

// Of fp32, bf16 and fp16 storage.
template <class T>
constexpr AttentionImplementation<T> kAll[] = {
#if defined(__x86_64__)
    decode<T, avx512::kFlashTable, Isa::kAvx512>("decode-avx512"),
    flash<T, avx512::kFlashTable, Isa::kAvx512>("flash-avx512"),
    decode<T, avx2::kFlashTable, Isa::kAvx2>("decode-avx2"),
    flash<T, avx2::kFlashTable, Isa::kAvx2>("flash-avx2"),
#endif
    decode<T, generic::kFlashTable, Isa::kGeneric>("decode-generic"),
    flash<T, generic::kFlashTable, Isa::kGeneric>("flash-generic"),
    naive<T>()};
#if defined(__x86_64__)
constexpr AttentionImplementation<BFloat16> kBFloat16[] = {
    decode<BFloat16, avx512::kFlashTable, Isa::kAvx512>("decode-avx512"),
    {"flash-amx", amx_refusal, amx_forward, amx_backward},
    {"flash-avx512_bf16", dot_refusal, dot_forward, dot_backward},
    flash<BFloat16, avx512::kFlashTable, Isa::kAvx512>("flash-avx512"),
    decode<BFloat16, avx2::kFlashTable, Isa::kAvx2>("decode-avx2"),
    flash<BFloat16, avx2::kFlashTable, Isa::kAvx2>("flash-avx2"),
    decode<BFloat16, generic::kFlashTable, Isa::kGeneric>("decode-generic"),
    flash<BFloat16, generic::kFlashTable, Isa::kGeneric>("flash-generic"),
    naive<BFloat16>()};
#else
constexpr const auto& kBFloat16 = kAll<BFloat16>;
#endif
constexpr AttentionImplementation<double> kDouble[] = {naive<double>()};

}  // namespace

template <class T>
bool AttentionImplementation<T>::is_naive() const {
  return name == kNaiveName;
}

template <>
std::span<const AttentionImplementation<double>> attention_implementations() {
  return kDouble;
}

template <>
std::span<const AttentionImplementation<float>> attention_implementations() {
  return kAll<float>;
}
template <>
std::span<const AttentionImplementation<BFloat16>> attention_implementations() {
  return kBFloat16;
}
template <>
std::span<const AttentionImplementation<Float16>> attention_implementations() {
  return kAll<Float16>;
}

template struct AttentionImplementation<float>;
template struct AttentionImplementation<double>;
template struct AttentionImplementation<BFloat16>;
template struct AttentionImplementation<Float16>;

}  // namespace qkv::inline v0::kernels
