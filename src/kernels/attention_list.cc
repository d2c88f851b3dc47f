#include "kernels/attention_list.h"

#include "kernels/attention_decode.h"
#include "kernels/attention_flash.h"
#include "kernels/reference/attention.h"
#include "kernels/registry.h"
#include "kernels/simd_tables.h"

namespace qkv::inline v0::kernels {

QKV_SIMD_TABLE(FlashTable, kFlashTable)

namespace {

constexpr const char* kNaiveName = "naive";

template <class T>
std::string naive_refusal(const AttentionProblem<T>&) {
  return "";
}

template <const FlashTable& kTable>
void forward_with(const AttentionProblem<float>& problem) {
  flash_forward(kTable, problem);
}
template <const FlashTable& kTable>
void backward_with(const AttentionProblem<float>& problem) {
  flash_backward(kTable, problem);
}
template <Isa kIsa>
std::string flash_refusal(const AttentionProblem<float>&) {
  return refusal_of(isa_name(kIsa), kIsa);
}

template <Isa kIsa>
std::string decode_refusal_of(const AttentionProblem<float>& problem) {
  const std::string reason = flash_refusal<kIsa>(problem);
  return reason.empty() ? decode_refusal(problem) : reason;
}

template <class T>
constexpr AttentionImplementation<T> naive() {
  return {kNaiveName, naive_refusal<T>, attention_reference<T>, attention_backward_reference<T>};
}
template <const FlashTable& kTable, Isa kIsa>
constexpr AttentionImplementation<float> flash(const char* name) {
  return {name, flash_refusal<kIsa>, forward_with<kTable>, backward_with<kTable>};
}

// The same functions: they decode the sequences that are fit for it. Named apart where all are.
template <const FlashTable& kTable, Isa kIsa>
constexpr AttentionImplementation<float> decode(const char* name) {
  return {name, decode_refusal_of<kIsa>, forward_with<kTable>, backward_with<kTable>};
}

constexpr AttentionImplementation<float> kFloat[] = {
#if defined(__x86_64__)
    decode<avx512::kFlashTable, Isa::kAvx512>("decode-avx512"),
    flash<avx512::kFlashTable, Isa::kAvx512>("flash-avx512"),
    decode<avx2::kFlashTable, Isa::kAvx2>("decode-avx2"),
    flash<avx2::kFlashTable, Isa::kAvx2>("flash-avx2"),
#endif
    decode<generic::kFlashTable, Isa::kGeneric>("decode-generic"),
    flash<generic::kFlashTable, Isa::kGeneric>("flash-generic"),
    naive<float>()};
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
  return kFloat;
}

template struct AttentionImplementation<float>;
template struct AttentionImplementation<double>;

}  // namespace qkv::inline v0::kernels
