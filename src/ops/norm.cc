#include "ops/norm.h"

#include <cmath>

#include "kernels/norm.h"
#include "kernels/vector.h"
#include "ops/common.h"

namespace qkv::inline v0::ops {
namespace {

// The layout's (sample, position) of every row, ready for the kernels.
class DropoutPlan {
 public:
  DropoutPlan(const DropoutOptions& options, std::int64_t rows, const char* where) {
    require<ArgumentError>(options.p >= 0 && options.p <= 1, where,
                           "expected a dropout probability in [0, 1], got {}", options.p);
    if (options.p == 0) return;
    const double threshold = std::nearbyint(options.p * 65536);
    rows_.active = threshold > 0;
    rows_.all = threshold >= 65536;
    rows_.threshold = static_cast<std::uint32_t>(threshold);
    rows_.scale = 65536 / (65536 - threshold);
    if (!rows_.active) return;
    if (rows_.all) return;
    require<ArgumentError>(
        options.layout != nullptr, where,
        "expected a ragged layout with dropout: it names the sample and position of each row");
    const RaggedLayout& layout = *options.layout;
    require<ShapeError>(
        layout.tokens() == rows && static_cast<std::int64_t>(layout.positions.size()) == rows &&
            static_cast<std::int64_t>(layout.samples.size()) == layout.batch(),
        where,
        "expected a layout of {} tokens with positions and samples, got {} tokens, {} positions, "
        "{} samples of {} sequences",
        rows, layout.tokens(), layout.positions.size(), layout.samples.size(), layout.batch());
    samples_.resize(static_cast<std::size_t>(rows));
    for (std::size_t b = 0; b + 1 < layout.starts.size(); ++b)
      for (std::int32_t t = layout.starts[b]; t < layout.starts[b + 1]; ++t)
        samples_[static_cast<std::size_t>(t)] = static_cast<std::uint32_t>(layout.samples[b]);
    rows_.key = options.key.key;
    rows_.step = options.key.step;
    rows_.tokens = layout.positions.data();
    rows_.samples = samples_.data();
  }
  kernels::DropoutRows from(std::int64_t row) const {
    kernels::DropoutRows r = rows_;
    if (r.tokens != nullptr) {
      r.tokens += row;
      r.samples += row;
    }
    return r;
  }

 private:
  kernels::DropoutRows rows_;
  std::vector<std::uint32_t> samples_;
};

void check_norm(const Tensor& x, NormKind kind, const Tensor& gamma, const Tensor& beta,
                const char* where) {
  check_matrix(x, where, "x");
  check_like(gamma, {x.dim(1)}, x.dtype(), where, "gamma");
  require<ArgumentError>(kind == NormKind::kLayer || !beta.defined(), where,
                         "expected no beta for an rms norm");
  if (beta.defined()) check_like(beta, {x.dim(1)}, x.dtype(), where, "beta");
}

NormResult empty_result(const Tensor& x, NormKind kind) {
  NormResult r;
  r.y = Tensor::empty(x.shape(), x.dtype());
  r.rstd = Tensor::empty({x.dim(0)}, x.dtype());
  if (kind == NormKind::kLayer) r.mean = Tensor::empty({x.dim(0)}, x.dtype());
  return r;
}

template <class T>
kernels::NormForward<T> forward_problem(const Tensor& x, NormKind kind, const Tensor& gamma,
                                        const Tensor& beta, double eps, const NormResult& r) {
  return {.rms = kind == NormKind::kRms,
          .rows = x.dim(0),
          .width = x.dim(1),
          .eps = eps,
          .x = x.data<T>(),
          .residual = nullptr,
          .sum = nullptr,
          .gamma = gamma.data<T>(),
          .beta = data_or_null<T>(beta),
          .y = r.y.data<T>(),
          .mean = data_or_null<T>(r.mean),
          .rstd = r.rstd.data<T>(),
          .dropout = {}};
}

// The rows begin .. end of a problem.
template <class T>
kernels::NormForward<T> rows_of(kernels::NormForward<T> p, std::int64_t begin, std::int64_t end) {
  const std::int64_t at = begin * p.width;
  p.rows = end - begin;
  p.x += at;
  if (p.residual != nullptr) {
    p.residual += at;
    p.sum += at;
  }
  p.y += at;
  if (p.mean != nullptr) p.mean += begin;
  p.rstd += begin;
  return p;
}

void run_dropout(const Tensor& x, const Tensor& residual, const DropoutPlan& plan,
                 const Tensor& y) {
  dispatch_floating(x.dtype(), "dropout", [&]<class T>(T) {
    const auto& kernels = kernels::norm_kernels<T>();
    parallel_chunks(x.dim(0), kChunkRows, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t at = begin * x.dim(1);
      kernels.dropout({.rows = end - begin,
                       .width = x.dim(1),
                       .x = x.data<T>() + at,
                       .residual = residual.defined() ? residual.data<T>() + at : nullptr,
                       .y = y.data<T>() + at,
                       .dropout = plan.from(begin)});
    });
  });
}

void run_add(const Tensor& a, const Tensor& b, const Tensor& y) {
  dispatch_floating(a.dtype(), "add", [&]<class T>(T) {
    const auto& kernels = kernels::vector_kernels<T>();
    parallel_chunks(a.numel(), kChunkElements, [&](std::int64_t begin, std::int64_t end) {
      kernels.add(a.data<T>() + begin, b.data<T>() + begin, y.data<T>() + begin, end - begin);
    });
  });
}

void check_sum(const Tensor& a, const Tensor& b, const char* where) {
  require<ShapeError>(a.defined() && b.defined(), where,
                      "expected two tensors, got an undefined one");
  require<ShapeError>(a.is_contiguous(), where,
                      "expected a contiguous tensor; call contiguous() first");
  check_like(b, a.shape(), a.dtype(), where, "the second tensor");
}

}  // namespace

NormResult norm(const Tensor& x, NormKind kind, const Tensor& gamma, const Tensor& beta,
                double eps) {
  check_norm(x, kind, gamma, beta, "norm");
  NormResult result = empty_result(x, kind);
  dispatch_floating(x.dtype(), "norm", [&]<class T>(T) {
    const auto& kernels = kernels::norm_kernels<T>();
    const auto problem = forward_problem<T>(x, kind, gamma, beta, eps, result);
    parallel_chunks(x.dim(0), kChunkRows, [&](std::int64_t begin, std::int64_t end) {
      kernels.forward(rows_of(problem, begin, end));
    });
  });
  return result;
}

AddNormResult add_norm(const Tensor& x, const Tensor& residual, const DropoutOptions& options,
                       NormKind kind, const Tensor& gamma, const Tensor& beta, double eps) {
  check_norm(x, kind, gamma, beta, "add_norm");
  check_like(residual, x.shape(), x.dtype(), "add_norm", "residual");
  const DropoutPlan plan(options, x.dim(0), "add_norm");
  AddNormResult result{Tensor::empty(x.shape(), x.dtype()), empty_result(x, kind)};
  dispatch_floating(x.dtype(), "add_norm", [&]<class T>(T) {
    const auto& kernels = kernels::norm_kernels<T>();
    auto problem = forward_problem<T>(x, kind, gamma, beta, eps, result.norm);
    problem.residual = residual.data<T>();
    problem.sum = result.sum.data<T>();
    parallel_chunks(x.dim(0), kChunkRows, [&](std::int64_t begin, std::int64_t end) {
      auto rows = rows_of(problem, begin, end);
      rows.dropout = plan.from(begin);
      kernels.forward(rows);
    });
  });
  return result;
}

Tensor norm_backward(const Tensor& dy, const Tensor& x, const NormState& state,
                     const NormSlots& slots, const Tensor& add) {
  const char* where = "norm_backward";
  const Tensor &gamma = state.gamma, &mean = state.mean, &rstd = state.rstd;
  const Tensor &dgamma = slots.dgamma, &dbeta = slots.dbeta;
  const bool layer = state.kind == NormKind::kLayer, add_up = slots.into == Into::kAdd;
  check_norm(x, state.kind, gamma, Tensor(), where);
  check_like(dy, x.shape(), x.dtype(), where, "dy");
  check_like(rstd, {x.dim(0)}, x.dtype(), where, "rstd");
  if (layer) check_like(mean, {x.dim(0)}, x.dtype(), where, "mean");
  if (add.defined()) check_like(add, x.shape(), x.dtype(), where, "add");
  if (dgamma.defined()) check_like(dgamma, gamma.shape(), x.dtype(), where, "dgamma");
  if (dbeta.defined()) check_like(dbeta, gamma.shape(), x.dtype(), where, "dbeta");
  Tensor dx = Tensor::empty(x.shape(), x.dtype());
  const std::int64_t width = x.dim(1), chunks = chunk_count(x.dim(0), kChunkRows);
  dispatch_floating(x.dtype(), where, [&]<class T>(T) {
    const auto& kernels = kernels::norm_kernels<T>();
    const Partials<T> gammas(chunks, width, dgamma.defined()),
        betas(chunks, width, dbeta.defined());
    parallel_chunks(x.dim(0), kChunkRows, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t at = begin * width, chunk = begin / kChunkRows;
      kernels.backward({.rms = !layer,
                        .rows = end - begin,
                        .width = width,
                        .dy = dy.data<T>() + at,
                        .x = x.data<T>() + at,
                        .gamma = gamma.data<T>(),
                        .mean = layer ? mean.data<T>() + begin : nullptr,
                        .rstd = rstd.data<T>() + begin,
                        .add = add.defined() ? add.data<T>() + at : nullptr,
                        .dx = dx.data<T>() + at,
                        .dgamma = gammas.of(chunk),
                        .dbeta = betas.of(chunk)});
    });
    if (dgamma.defined()) gammas.add_to(dgamma.data<T>(), add_up);
    if (dbeta.defined()) betas.add_to(dbeta.data<T>(), add_up);
  });
  return dx;
}

Tensor dropout(const Tensor& x, const DropoutOptions& options) {
  check_matrix(x, "dropout", "x");
  const DropoutPlan plan(options, x.dim(0), "dropout");
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  run_dropout(x, Tensor(), plan, y);
  return y;
}

Tensor add_dropout(const Tensor& x, const Tensor& residual, const DropoutOptions& options) {
  check_matrix(x, "add_dropout", "x");
  check_like(residual, x.shape(), x.dtype(), "add_dropout", "residual");
  const DropoutPlan plan(options, x.dim(0), "add_dropout");
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  run_dropout(x, residual, plan, y);
  return y;
}

Tensor add(const Tensor& a, const Tensor& b) {
  check_sum(a, b, "add");
  Tensor y = Tensor::empty(a.shape(), a.dtype());
  run_add(a, b, y);
  return y;
}

void add_inplace(const Tensor& a, const Tensor& b) {
  check_sum(a, b, "add_inplace");
  run_add(a, b, a);
}

}  // namespace qkv::inline v0::ops
