// Attention and convolution as a library's fused kernels would run them, by
// their descriptors alone: sums over all elements, in double precision.
#include "test/unit/cuda/EmulatedFused.h"

#include "test/unit/cuda/EmulatedDevice.h"

#include <array>
#include <atomic>
#include <cmath>
#include <functional>

namespace merak::cuda {

namespace {

std::atomic<int> runs{0};

// An operand by its descriptor.
struct Access {
  Ref data;
  const FusedTensor &tensor;

  Access(void *address, const FusedTensor &t)
      : data{static_cast<char *>(address), t.type}, tensor(t) {}
  int64_t at(std::span<const int64_t> index) const {
    int64_t offset = 0;
    for (size_t d = 0; d < index.size(); ++d)
      if (tensor.sizes[d] > 1) // dimensions of size 1 repeat
        offset += index[d] * tensor.strides[d];
    return offset;
  }
  double operator()(std::initializer_list<int64_t> index) const {
    return load<double>(data, at(std::span(index.begin(), index.size())));
  }
  double get(std::span<const int64_t> index) const {
    return load<double>(data, at(index));
  }
  void set(std::span<const int64_t> index, double value) const {
    store<double>(data, at(index), value, false);
  }
};

struct Attention : FusedPlan {
  const EmulatedDevice *device = nullptr;
  FusedAttention a;

  Status run(std::span<void *const> o, void *memory, void *stream) override {
    if (!memory || !isAligned(o) || o.size() != size_t(a.backward ? 9 : 5))
      return Status::error("operands that cuDNN refuses");
    ++runs;
    const std::vector<void *> operands(o.begin(), o.end());
    return device->enqueue(
        stream, [self = *this, operands] { return self.all(operands); });
  }

  Status all(std::span<void *const> o) const {
    const size_t next = 5;
    const Access q(o[0], a.q), k(o[1], a.k), v(o[2], a.v), out(o[3], a.out);
    const Access lse(o[4], a.lse);
    const int64_t b = a.q.sizes[0], h = a.q.sizes[1], tq = a.q.sizes[2];
    const int64_t d = a.q.sizes[3], tk = a.k.sizes[2];
    const int64_t shared = h / a.k.sizes[1];
    // Gradients of keys and values are sums over the heads that share them.
    std::vector<double> dk(size_t(b * a.k.sizes[1] * tk * d)), dv(dk);
    for (int64_t i = 0; i < b; ++i)
      for (int64_t head = 0; head < h; ++head)
        for (int64_t row = 0; row < tq; ++row) {
          const int64_t group = head / shared;
          std::vector<double> scores(size_t(tk), -INFINITY);
          double top = -INFINITY, sum = 0;
          for (int64_t j = 0; j < tk; ++j) {
            if (a.causal && j > row + tk - tq)
              continue;
            double score = 0;
            for (int64_t e = 0; e < d; ++e)
              score += q({i, head, row, e}) * k({i, group, j, e});
            score *= a.scale;
            scores[size_t(j)] = score;
            top = std::max(top, score);
          }
          for (double score : scores)
            sum += std::exp(score - top);
          const double all =
              a.backward ? lse({i, head, row, 0}) : top + std::log(sum);
          for (double &score : scores)
            score = std::exp(score - all);
          if (!a.backward) {
            lse.set(std::array{i, head, row, int64_t{0}}, all);
            for (int64_t e = 0; e < d; ++e) {
              double value = 0;
              for (int64_t j = 0; j < tk; ++j)
                value += scores[size_t(j)] * v({i, group, j, e});
              out.set(std::array{i, head, row, e}, value);
            }
            continue;
          }
          const Access dout(o[next], a.dout), dq(o[next + 1], a.dq);
          double delta = 0;
          for (int64_t e = 0; e < d; ++e)
            delta += dout({i, head, row, e}) * out({i, head, row, e});
          std::vector<double> row_dq(size_t(d), 0);
          for (int64_t j = 0; j < tk; ++j) {
            double dp = 0;
            for (int64_t e = 0; e < d; ++e)
              dp += dout({i, head, row, e}) * v({i, group, j, e});
            const double ds = scores[size_t(j)] * (dp - delta) * a.scale;
            const size_t at = size_t(((i * a.k.sizes[1] + group) * tk + j) * d);
            for (int64_t e = 0; e < d; ++e) {
              row_dq[size_t(e)] += ds * k({i, group, j, e});
              dk[at + size_t(e)] += ds * q({i, head, row, e});
              dv[at + size_t(e)] += scores[size_t(j)] * dout({i, head, row, e});
            }
          }
          for (int64_t e = 0; e < d; ++e)
            dq.set(std::array{i, head, row, e}, row_dq[size_t(e)]);
        }
    if (!a.backward)
      return {};
    const Access dkOut(o[next + 2], a.dk), dvOut(o[next + 3], a.dv);
    size_t at = 0;
    for (int64_t i = 0; i < b; ++i)
      for (int64_t group = 0; group < a.k.sizes[1]; ++group)
        for (int64_t j = 0; j < tk; ++j)
          for (int64_t e = 0; e < d; ++e, ++at) {
            dkOut.set(std::array{i, group, j, e}, dk[at]);
            dvOut.set(std::array{i, group, j, e}, dv[at]);
          }
    return {};
  }
};

// All points of a box.
void forPoints(const std::vector<int64_t> &sizes,
               const std::function<void(const std::vector<int64_t> &)> &body) {
  std::vector<int64_t> at(sizes.size(), 0);
  int64_t count = 1;
  for (int64_t size : sizes)
    count *= size;
  for (int64_t i = 0; i < count; ++i) {
    body(at);
    for (size_t d = sizes.size(); d-- > 0;) {
      if (++at[d] < sizes[d])
        break;
      at[d] = 0;
    }
  }
}

struct Convolution : FusedPlan {
  const EmulatedDevice *device = nullptr;
  FusedConvolution c;

  Status run(std::span<void *const> o, void *, void *stream) override {
    if (o.size() != 3 || !isAligned(o))
      return Status::error("operands that cuDNN refuses");
    ++runs;
    const std::vector<void *> operands(o.begin(), o.end());
    return device->enqueue(
        stream, [self = *this, operands] { return self.all(operands); });
  }

  Status all(std::span<void *const> o) const {
    const Access x(o[0], c.x), w(o[1], c.w), y(o[2], c.y);
    const FusedTensor &written = c.kind == FusedConvolution::Forward     ? c.y
                                 : c.kind == FusedConvolution::GradInput ? c.x
                                                                         : c.w;
    auto index = [](const FusedTensor &t, const std::vector<int64_t> &at) {
      int64_t flat = 0;
      for (size_t d = 0; d < at.size(); ++d)
        flat = flat * t.sizes[d] + at[d];
      return size_t(flat);
    };
    int64_t count = 1;
    for (int64_t size : written.sizes)
      count *= size;
    std::vector<double> sums(size_t(count), 0);
    const int64_t perGroup = c.w.sizes[0] / (c.x.sizes[1] / c.w.sizes[1]);
    // Every product of an element of x and one of w, where it goes in y.
    forPoints(c.y.sizes, [&](const std::vector<int64_t> &to) {
      std::vector<int64_t> window(c.w.sizes.begin() + 1, c.w.sizes.end());
      forPoints(window, [&](const std::vector<int64_t> &in) {
        std::vector<int64_t> from = {to[0],
                                     to[1] / perGroup * c.w.sizes[1] + in[0]};
        for (size_t d = 0; d + 2 < to.size(); ++d) {
          from.push_back(to[d + 2] * c.strides[d] - c.padBegin[d] +
                         in[d + 1] * c.dilations[d]);
          if (from.back() < 0 || from.back() >= c.x.sizes[d + 2])
            return;
        }
        std::vector<int64_t> weight = {to[1]};
        weight.insert(weight.end(), in.begin(), in.end());
        if (c.kind == FusedConvolution::Forward)
          sums[index(c.y, to)] += x.get(from) * w.get(weight);
        else if (c.kind == FusedConvolution::GradInput)
          sums[index(c.x, from)] += y.get(to) * w.get(weight);
        else
          sums[index(c.w, weight)] += y.get(to) * x.get(from);
      });
    });
    const Access result = c.kind == FusedConvolution::Forward     ? y
                          : c.kind == FusedConvolution::GradInput ? x
                                                                  : w;
    forPoints(written.sizes, [&](const std::vector<int64_t> &at) {
      result.set(at, sums[index(written, at)]);
    });
    return {};
  }
};

} // namespace

int fusedRuns() { return runs; }

std::shared_ptr<FusedPlan>
EmulatedDevice::fused(const FusedAttention &attention) const {
  if (!emulation_.fused)
    return nullptr;
  auto plan = std::make_shared<Attention>();
  plan->device = this;
  plan->a = attention;
  plan->workspace = 256;
  return plan;
}

std::shared_ptr<FusedPlan>
EmulatedDevice::fused(const FusedConvolution &convolution) const {
  const FusedConvolution &c = convolution;
  const bool mixed = c.x.type != c.w.type || c.y.type != c.w.type;
  if (!emulation_.fused || (mixed && !emulation_.mixed))
    return nullptr;
  auto plan = std::make_shared<Convolution>();
  plan->device = this;
  plan->c = convolution;
  return plan;
}

} // namespace merak::cuda
