// Accuracy, precision, recall and F1 of a classifier, from a confusion matrix.
#pragma once

#include <cstdint>
#include <vector>

namespace qkv::inline v0::metrics {

// Counts of (true class, predicted class). Not thread-safe.
class Confusion {
 public:
  explicit Confusion(std::int64_t classes);              // ArgumentError unless >= 1
  void add(std::int64_t truth, std::int64_t predicted);  // ArgumentError outside [0, classes)
  std::int64_t classes() const { return classes_; }
  std::int64_t total() const { return total_; }
  std::int64_t at(std::int64_t truth, std::int64_t predicted) const {
    return counts_[static_cast<std::size_t>(truth * classes_ + predicted)];
  }
  // Share of right answers; 0 for an empty matrix.
  double accuracy() const;

  struct PerClass {
    std::int64_t support = 0, predicted = 0, right = 0;
    // right / predicted, right / support, and their harmonic mean; 0 where a denominator is 0 (as
    // scikit-learn).
    double precision = 0, recall = 0, f1 = 0;
  };
  std::vector<PerClass> per_class() const;
  // Mean of F1 over the classes that occur, as truth or as a prediction; so scikit-learn's
  // f1_score(average="macro") without a list of labels. 0 for an empty matrix.
  double macro_f1() const;

 private:
  std::int64_t classes_, total_ = 0;
  std::vector<std::int64_t> counts_;  // [truth, predicted]
};

}  // namespace qkv::inline v0::metrics
