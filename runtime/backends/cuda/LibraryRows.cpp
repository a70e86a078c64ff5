// softmax, softmax_grad, softmax_cross_entropy and its gradient.
#include "runtime/backends/cuda/Kernel.h"

#include <fmt/format.h>

namespace merak::cuda {

namespace {

// The rows along `axis` of operands of one shape.
bool readRows(Request &request, const std::vector<const View *> &views,
              SoftmaxArgs &args) {
  const int64_t axis = request.axis(views[0]->rank());
  if (!request.ok())
    return false;
  std::vector<int64_t> shape = views[0]->shape;
  args.size = shape[axis];
  shape.erase(shape.begin() + axis);
  std::vector<std::vector<int64_t>> strides;
  for (size_t i = 0; i < views.size(); ++i) {
    strides.push_back(views[i]->strides);
    strides.back().erase(strides.back().begin() + axis);
    args.steps[i] = views[i]->strides[axis];
  }
  args.rows = makeLoops<3>(request, Nest(shape, strides));
  return request.ok();
}

KernelResult createSoftmax(Request &request, const Device &) {
  if (!request.counts(1, 1))
    return request.status();
  expectAllReal(request);
  request.sameShape(request.inputs[0], "x", request.outputs[0], "y");
  SoftmaxArgs args;
  if (!request.ok() ||
      !readRows(request, {&request.inputs[0], &request.outputs[0]}, args))
    return request.status();
  return makeKernel([args](const KernelCall &call, Launcher &launcher) {
    SoftmaxArgs now = args;
    now.x = ref(call.inputs[0]);
    now.y = ref(call.outputs[0]);
    now.add = call.accumulate;
    return launcher.rows<KernelId::Softmax>(now, now.rows.count, now.size);
  });
}

KernelResult createSoftmaxGrad(Request &request, const Device &) {
  if (!request.counts(2, 1))
    return request.status();
  expectAllReal(request);
  request.sameShape(request.inputs[0], "y", request.inputs[1], "dy");
  request.sameShape(request.inputs[0], "y", request.outputs[0], "dx");
  SoftmaxArgs args;
  if (!request.ok() ||
      !readRows(request,
                {&request.inputs[0], &request.inputs[1], &request.outputs[0]},
                args))
    return request.status();
  return makeKernel([args](const KernelCall &call, Launcher &launcher) {
    SoftmaxArgs now = args;
    now.y = ref(call.inputs[0]);
    now.dy = ref(call.inputs[1]);
    now.dx = ref(call.outputs[0]);
    now.add = call.accumulate;
    return launcher.rows<KernelId::SoftmaxGrad>(now, now.rows.count, now.size);
  });
}

// Logits, labels, the operands of one value a row, the gradient.
bool readLoss(Request &request, const View &loss, const View &lse,
              const View *gradient, CrossEntropyArgs &args) {
  const View &logits = request.inputs[0], &labels = request.inputs[1];
  if (!request.expect(logits.rank() > 0, "expected logits of rank 1 or more"))
    return false;
  const std::vector<int64_t> shape(logits.shape.begin(),
                                   logits.shape.end() - 1);
  auto lead = [](const View &view) {
    return std::vector<int64_t>(view.strides.begin(), view.strides.end() - 1);
  };
  expectReal(request, logits, "logits");
  request.index(labels, "labels");
  request.shape(labels, "labels", shape);
  for (const View *view : {&loss, &lse}) {
    expectReal(request, *view, "values of a row");
    request.shape(*view, "values of a row", shape);
  }
  if (gradient) {
    expectReal(request, *gradient, "dlogits");
    request.sameShape(logits, "logits", *gradient, "dlogits");
  }
  args.hasIgnored = request.has("ignore_index");
  args.ignored = request.integer("ignore_index", 0);
  if (!request.ok())
    return false;
  std::vector<std::vector<int64_t>> strides = {lead(logits), labels.strides,
                                               loss.strides, lse.strides};
  if (gradient)
    strides.push_back(lead(*gradient));
  args.rows = makeLoops<5>(request, Nest(shape, strides));
  args.columns = logits.shape.back();
  args.steps[0] = logits.strides.back();
  args.steps[1] = gradient ? gradient->strides.back() : 0;
  return request.ok();
}

KernelResult createLoss(Request &request, const Device &) {
  CrossEntropyArgs args;
  if (!request.counts(2, 2) ||
      !readLoss(request, request.outputs[0], request.outputs[1], nullptr, args))
    return request.status();
  return makeKernel([args](const KernelCall &call, Launcher &launcher) {
    CrossEntropyArgs now = args;
    now.logits = ref(call.inputs[0]);
    now.labels = ref(call.inputs[1]);
    now.loss = ref(call.outputs[0]);
    now.lse = ref(call.outputs[1]);
    now.add = call.accumulate;
    return launcher.rows<KernelId::CrossEntropy>(now, now.rows.count,
                                                 now.columns);
  });
}

KernelResult createLossGrad(Request &request, const Device &) {
  CrossEntropyArgs args;
  if (!request.counts(4, 1) ||
      !readLoss(request, request.inputs[3], request.inputs[2],
                &request.outputs[0], args))
    return request.status();
  return makeKernel([args](const KernelCall &call, Launcher &launcher) {
    CrossEntropyArgs now = args;
    now.logits = ref(call.inputs[0]);
    now.labels = ref(call.inputs[1]);
    now.lse = ref(call.inputs[2]);
    now.loss = ref(call.inputs[3]);
    now.gradient = ref(call.outputs[0]);
    now.first = cpu::scalarInteger(call, 0);
    now.add = call.accumulate;
    return launcher.rows<KernelId::CrossEntropyGrad>(now, now.rows.count,
                                                     now.columns);
  });
}

constexpr KernelEntry kEntries[] = {
    {"softmax", createSoftmax},
    {"softmax_grad", createSoftmaxGrad},
    {"softmax_cross_entropy", createLoss},
    {"softmax_cross_entropy_grad", createLossGrad},
};

} // namespace

std::span<const KernelEntry> rowKernels() { return kEntries; }

} // namespace merak::cuda
