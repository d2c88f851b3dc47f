#include "doctor/symptoms.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "qkv/doctor.h"

#include "base/check.h"

namespace qkv::inline v0::doctor {

namespace {

constexpr const char* kFunction = "qkv.doctor.check(attention=fn, mask=\"keep\")  # in Python";
constexpr const char* kModule = "qkv.doctor.check(model=module)  # in Python";
constexpr const char* kFolder = "qkv doctor MODEL";

constexpr Cause kShortFine[] = {
    {"mask-value", "hidden keys get a score of 0 or a finite number in place of minus infinity",
     kFunction, nullptr},
    {"scale", "scores are not divided by sqrt(head size)", kFunction, nullptr},
    {"padding-leak", "a layer, or the pooling, does not see the padding mask", kModule, nullptr},
    {"position-shift", "positions are cut off or collide beyond some length", kModule, nullptr},
    {"positions-table", "the position table is shorter than the configuration says", kFolder,
     nullptr},
    {nullptr, "the long texts were cut in training", "qkv train CONFIG.toml",
     "Look at the counts of cut texts that training prints, and raise data.max_length."}};

constexpr Cause kLossNotFinite[] = {
    {"non-finite", "exp overflows in a softmax that does not subtract the largest score", kFunction,
     nullptr},
    {"empty-row", "a row without visible keys gives NaN: texts of padding alone", kFunction,
     nullptr},
    {nullptr, "the learning rate is too high, or gradients are not clipped",
     "qkv train CONFIG.toml --set train.clip_norm=1",
     "Clip the gradient at 1, warm up for a tenth of the steps, and halve the rate."},
    {"dtype-drift", "softmax, norms or the loss are computed in 16 bits", kFunction, nullptr},
    {"non-finite", "a weight of the loaded model is not finite", kFolder,
     "Take the file from its source again; if it was trained here, go back to an earlier "
     "checkpoint."}};

constexpr Cause kLossJumps[] = {
    {nullptr, "the peak of the learning rate is too high, or reached too early",
     "qkv train CONFIG.toml --set train.warmup_ratio=0.1",
     "Warm up for a tenth of the steps; halve the rate if the jumps come after warm-up."},
    {nullptr, "gradients are not clipped", "qkv train CONFIG.toml --set train.clip_norm=1",
     "Clip the gradient's norm at 1, and look at grad_norm in metrics.jsonl at the jump."},
    {"scale", "scores are not divided by sqrt(head size), so that softmax saturates", kFunction,
     nullptr},
    {"gradient", "a hand-written backward pass is wrong", kFunction, nullptr},
    {"dropout-alive", "the jumps are in evaluation: dropout is still on", kModule, nullptr}};

constexpr Cause kLossFlat[] = {
    {"gradient-missing", "a detach or a no-grad block cuts the gradient", kModule, nullptr},
    {"gradient", "the gradient is not that of the function", kFunction, nullptr},
    {"mask-polarity", "the mask is read the wrong way round: the model sees padding alone",
     kFunction, nullptr},
    {"saturated", "rows are one-hot from the start", kFunction, nullptr},
    {"normalised-qk", "queries or keys are normalised, so that maps stay flat", kFunction, nullptr},
    {"embedding-scale", "positions drown the tokens", kModule, nullptr},
    {nullptr, "the learning rate is too low, or the labels are wrong",
     "qkv train CONFIG.toml --set train.learning_rate=0.001",
     "Overfit a hundred examples first; if that does not succeed, read ten of them with their "
     "labels."}};

constexpr Cause kBatchDependent[] = {
    {"padding-leak", "padding is attended to, or averaged in by the pooling", kModule, nullptr},
    {"padding-amount", "a length, a mean or a position counts the padding", kModule, nullptr},
    {"batch-mates", "a reshape without transpose, or statistics over the batch", kModule, nullptr},
    {"mask-ignored", "the mask does not reach the softmax", kFunction, nullptr},
    {"position-shift", "padding stands in front and shifts positions", kModule, nullptr}};

constexpr Cause kTooGood[] = {
    {"future-leak", "earlier positions see later tokens", kModule, nullptr},
    {"mask-combination", "with a padding mask, causal is lost", kFunction, nullptr},
    {"cache", "training is right, and the cache is wrong", kModule, nullptr},
    {nullptr, "test data lie in the training data", "qkv eval MODEL --data FILE",
     "Remove duplicates over the border of the sets before splitting."}};

constexpr Cause kPoorLoaded[] = {
    {"rope-pairing", "rotary positions pair other channels than the weights were trained with",
     "qkv.doctor.check(attention=fn, rope=\"half\")  # in Python", nullptr},
    {"weights-missing", "a weight was not found and starts at random", kFolder, nullptr},
    {"weights-shape", "a weight is transposed or of another model", kFolder, nullptr},
    {"vocabulary", "the tokenizer is not that of the weights", kFolder, nullptr},
    {"scale", "another scale than the one in training", kFunction, nullptr},
    {"head-groups", "query heads read the wrong key/value head", kFunction, nullptr},
    {"heads-alike", "heads were copied over one another", kFolder, nullptr},
    {"embedding-scale", "embeddings are not multiplied by sqrt(width) where training did", kModule,
     nullptr}};

constexpr Cause kOddMaps[] = {
    {"saturated", "all black with single points: scores are too large", kFunction, nullptr},
    {"scale", "one-hot or flat rows: the scale is missing or applied twice", kFunction, nullptr},
    {"normalised-qk", "all rows flat: queries or keys are normalised", kFunction, nullptr},
    {"heads-alike", "all heads show the same", kFolder, nullptr},
    {"mask-polarity", "the light lies on the padding", kFunction, nullptr},
    {"rows-sum", "columns sum to 1 in place of rows", kFunction, nullptr}};

constexpr Cause kUnsteady[] = {
    {"dropout-alive", "dropout is on at inference", kModule, nullptr},
    {"nondeterminism", "buffers that were never written, state from earlier calls, or a race",
     kModule, nullptr},
    {"batch-mates", "the other texts of the batch count", kModule, nullptr}};

constexpr Cause kOtherLibrary[] = {
    {"reference", "another formula", kFunction, nullptr},
    {"mask-polarity", "true means the opposite in the other library", kFunction, nullptr},
    {"causal-corner", "the causal triangle hangs at the other corner", kFunction, nullptr},
    {"window-edge", "the window is off by one", kFunction, nullptr},
    {"dtype-drift", "one of the two computes in 16 bits", kFunction, nullptr},
    {"kernel", "a kernel is wrong on this processor", "qkv doctor machine", nullptr}};

constexpr Cause kDecodingWrong[] = {
    {"cache", "a step sees other positions or keys than the full run", kModule, nullptr},
    {"causal-corner", "one query against the cache sees the first key alone", kFunction, nullptr},
    {"position-shift", "positions start anew at each step, or the limit is passed", kModule,
     nullptr},
    {"head-groups", "the cache's heads are tiled in place of grouped", kFunction, nullptr}};

constexpr Cause kMemory[] = {
    {"quadratic-memory", "all scores are kept: N * N numbers for each head", kFunction, nullptr},
    {nullptr, "the batch is too large, or much of it is padding",
     "qkv train CONFIG.toml --set train.batch_tokens=2048",
     "Halve train.batch_tokens and double train.accumulate: the result is the same."},
    {nullptr, "the optimiser's state: two more numbers for each weight",
     "qkv train CONFIG.toml --set train.optimizer=sgd",
     "Freeze what need not move, or take an optimiser without state."}};

constexpr Cause kSlow[] = {
    {nullptr, "too few threads, or more of them than cores", "qkv info",
     "Set QKV_NUM_THREADS to the cores that are granted; qkv info says why it took its number."},
    {nullptr, "most of each batch is padding", "qkv train CONFIG.toml",
     "Pack batches by tokens, sorted by length; batches of qkv hold no padding."},
    {nullptr, "an older instruction set is in use", "qkv info",
     "Unset QKV_MAX_ISA, or ask for a machine with AVX2 or better."},
    {"quadratic-memory", "scores go through memory: long texts cost the most", kFunction, nullptr},
    {nullptr, "one rank or worker waits for another: lengths differ between them", "qkv info",
     "Deal out texts by tokens in place of counts."}};

constexpr Cause kSlowDecoding[] = {
    {nullptr, "no cache: each step reads the whole text again", kModule,
     "Keep keys and values of the tokens that are done, and pass the newest token alone."},
    {nullptr, "keys and values are copied for every query head", kFunction,
     "Let grouped heads share each load; do not repeat keys and values in memory."},
    {nullptr, "the cache is copied at each step", kModule,
     "Take room for the whole text at the start, and write in place."}};

constexpr Cause kNotLoading[] = {
    {"file-damaged", "a file is cut off", kFolder, nullptr},
    {"file-missing", "a shard or the tokenizer is not there", kFolder, nullptr},
    {"config", "config.json contradicts itself", kFolder, nullptr},
    {"weights-shape", "configuration and weights are of different models", kFolder, nullptr}};

constexpr Cause kWordOrder[] = {
    {"order-blind", "positions do not reach the model", kModule, nullptr},
    {"embedding-scale", "tokens drown the positions, or the other way round", kModule, nullptr},
    {"position-shift", "positions collide", kModule, nullptr}};

constexpr Symptom kSymptoms[] = {
    {"fine on short texts, poor on long ones",
     "length long worse drops accuracy quality degrade padding padded sentences", kShortFine},
    {"the loss is NaN or infinite", "nan inf infinity non finite overflow diverged explode",
     kLossNotFinite},
    {"the loss does not fall",
     "flat stuck plateau chance decrease learn learning slow constant accuracy random gradient "
     "zero "
     "vanish never moves training",
     kLossFlat},
    {"the loss jumps", "spike spikes jumping unstable diverges oscillates jitter", kLossJumps},
    {"answers change with the batch or the padding",
     "batch size padding padded neighbours alone single different result", kBatchDependent},
    {"poor answers after loading trained weights",
     "loaded checkpoint pretrained convert converted bleu flat perplexity gibberish garbage import "
     "rope original",
     kPoorLoaded},
    {"training far too good, generation nonsense",
     "leak future causal too low perplexity suspicious generated nonsense cheating", kTooGood},
    {"attention maps all black, all white, or all alike",
     "map maps attention weights uniform one hot heads same identical white black blank", kOddMaps},
    {"equal inputs give different answers",
     "random nondeterministic reproducible repeat vary inference jitter seed", kUnsteady},
    {"results differ from another library or machine",
     "mismatch pytorch huggingface port parity differs different reference tolerance",
     kOtherLibrary},
    {"generated text drifts or repeats itself",
     "cache kv decode decoding step generation loop repeats drift wrong", kDecodingWrong},
    {"memory is full", "oom out of memory killed allocation peak ram swap", kMemory},
    {"training is slow", "throughput tokens per second idle ranks cores threads utilisation cpu",
     kSlow},
    {"decoding is slow", "generation tokens per second latency slow time per token grows cache",
     kSlowDecoding},
    {"the model does not load", "load open file missing corrupt truncated error shard key index",
     kNotLoading},
    {"the order of words does not matter", "order bag position shuffled permutation", kWordOrder},
};

std::set<std::string> words_of(const std::string& text) {
  static const std::set<std::string> kStop{"the", "a",  "is", "of", "or", "and", "in",  "to",
                                           "on",  "my", "it", "i",  "we", "all", "does"};
  std::set<std::string> words;
  std::string word;
  for (const char c : text + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      continue;
    }
    if (!word.empty() && kStop.count(word) == 0) words.insert(word);
    word.clear();
  }
  return words;
}

// A word counts if it, or one that it begins with or that begins with it, is there: spike, spikes.
double shared(const std::set<std::string>& asked, const std::set<std::string>& known) {
  double count = 0;
  for (const std::string& word : asked) {
    const bool found = std::any_of(known.begin(), known.end(), [&](const std::string& other) {
      const bool prefix = word.size() >= 4 && other.size() >= 4 &&
                          (word.starts_with(other) || other.starts_with(word));
      return word == other || prefix;
    });
    count += found ? 1 : 0;
  }
  return count;
}

double score(const Symptom& symptom, const std::set<std::string>& asked) {
  double total = 2 * shared(asked, words_of(symptom.name)) + shared(asked, words_of(symptom.words));
  for (const Cause& cause : symptom.causes)
    if (cause.rule != nullptr)
      total += 0.1 * shared(asked, words_of(find_rule(cause.rule).symptom));
  return total;
}

}  // namespace

std::span<const Symptom> symptoms() { return kSymptoms; }

std::string remedy_of(const Cause& cause) {
  return cause.remedy != nullptr ? cause.remedy : find_rule(cause.rule).remedy;
}

std::vector<const Symptom*> find_symptoms(const std::string& text) {
  const std::set<std::string> asked = words_of(text);
  std::vector<std::pair<double, const Symptom*>> scored;
  for (const Symptom& symptom : kSymptoms) scored.emplace_back(score(symptom, asked), &symptom);
  std::stable_sort(scored.begin(), scored.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  if (scored[0].first < 1) {
    std::string names;
    for (const Symptom& symptom : kSymptoms)
      names += fmt::format("{}'{}'", names.empty() ? "" : ", ", symptom.name);
    fail<ArgumentError>("doctor", "expected what is seen in words of one of {}, got '{}'", names,
                        text);
  }
  std::vector<const Symptom*> best;
  for (const auto& [points, symptom] : scored)
    if (points >= 0.75 * scored[0].first && best.size() < 3) best.push_back(symptom);
  return best;
}

std::string troubleshooting_page() {
  std::string page =
      "# Troubleshooting\n\n"
      "From what is seen to what it may come from, both with the most frequent first; to each "
      "cause "
      "the one command that tells it\nfrom the others, and what to change. `qkv doctor --symptom "
      "\"loss nan\"` answers from the same list. In Python, `fn` is an attention\nfunction and "
      "`module` a model, whoever wrote them ([doctor.md](doctor.md)).\n\n"
      "This page is made by `tools/make_doctor_pages`.\n";
  for (const Symptom& symptom : kSymptoms) {
    std::string title = symptom.name;
    title[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(title[0])));
    page +=
        fmt::format("\n## {}\n| likely cause | told by | what to change |\n|---|---|---|\n", title);
    for (const Cause& cause : symptom.causes) {
      const std::string rule =
          cause.rule != nullptr ? fmt::format(" ([{0}](doctor/{0}.md))", cause.rule) : "";
      page += fmt::format("| {}{} | `{}` | {} |\n", cause.what, rule, cause.test, remedy_of(cause));
    }
  }
  return page;
}

}  // namespace qkv::inline v0::doctor
