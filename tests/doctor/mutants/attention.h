// A plain attention with one switch per fault: the gallery that the doctor is tried on.
#pragma once

#include <string>
#include <vector>

#include "qkv/doctor.h"

namespace qkv::testing {

enum class Fault {
  kNone,
  kNoScale,
  kScaleByInverseSize,
  kScaleByWidth,
  kScaleTwice,
  kUniform,
  kSoftmaxOverQueries,
  kSoftmaxOverHeads,
  kDividedByLength,
  kPhantomKey,
  kPhantomTile,
  kOnlineWithoutRescale,
  kValuesShifted,
  kQueryAndKeySwapped,
  kHardMax,
  kNormalisedQueries,
  kNormalisedKeys,
  kBatchMixed,
  kHeadsMixed,
  kDropoutOnWeights,
  kNoise,
  kState,
  kBfloat16,
  kHalfSoftmax,
  kNoMaximum,
  kWrongShape,
  kThrows,
  kAllNaN,
  kSlow,
  kIgnoresStrides,
  kWritesInputs,
  kMaskIgnored,
  kMaskInverted,
  kMaskZeroFilled,
  kMaskMinusTen,
  kMaskMinus1e4,
  kMaskMinus1e9,
  kMaskAsNumber,
  kMaskAfterSoftmax,
  kMaskOfFirstSequence,
  kMaskTransposed,
  kHiddenValuesAveraged,
  kLengthInScale,
  kPaddingInScale,
  kEmptyRowNaN,
  kEmptyRowMean,
  kMasksOr,
  kMaskReplacesCausal,
  kCausalReplacesMask,
  kCausalIgnored,
  kCausalOneLate,
  kCausalStrict,
  kCausalTopLeft,
  kCausalZeroFilled,
  kWindowOneWide,
  kWindowOneNarrow,
  kWindowIgnored,
  kHeadsTiled,
  kHeadsFirstOnly,
  kDecodeForgetsNewest,
  kDecodeWithoutScale,
  kGradientWithoutScale,
  kGradientWithoutRowSum,
  kGradientOfMaskedKeys,
  kGradientOfQueriesMissing,
  kGradientOfValuesMissing,
  kAllScoresKept
};

struct Mutant {
  Fault fault;
  const char* name;
  const char* id;                                     // of the rule that must find it first
  doctor::MaskStyle mask = doctor::MaskStyle::kKeep;  // what the function takes
  bool window = false;
  std::int64_t kv_heads = 0;  // 0: not stated
};

const std::vector<Mutant>& attention_mutants();

// The function with the mutant's fault, or with the same interface and no fault.
doctor::AttentionUnderTest make_attention(const Mutant& mutant, bool healthy = false);

}  // namespace qkv::testing
