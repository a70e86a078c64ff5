// What needs the headers of cuDNN's frontend, which take a minute to compile:
// graphs of attention and convolution, and the library's handle. Nothing else
// is here, so that little changes this file.
#include "runtime/backends/cuda/CudnnGraph.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <exception>

#ifdef MERAK_HAS_CUDNN
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <cudnn_frontend.h>

namespace fe = cudnn_frontend;

// The frontend looks its functions up here.
namespace cudnn_frontend {
void *cudnn_dlhandle = nullptr;
}

namespace merak::cuda {

namespace {

using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

fe::DataType_t dataType(Type type) {
  return type == Type::BF16  ? fe::DataType_t::BFLOAT16
         : type == Type::F16 ? fe::DataType_t::HALF
                             : fe::DataType_t::FLOAT;
}

// A graph under construction: operands are numbered in their order.
struct Builder {
  std::shared_ptr<fe::graph::Graph> graph =
      std::make_shared<fe::graph::Graph>();
  int64_t operands = 0;
  std::vector<fe::NumericalNote_t> avoided; // kernels with these

  explicit Builder(int major, int minor) {
    graph->set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT)
        .set_sm_version(10 * major + minor);
  }
  Tensor input(const FusedTensor &t) {
    return graph->tensor(fe::graph::Tensor_attributes()
                             .set_uid(++operands)
                             .set_dim(t.sizes)
                             .set_stride(t.strides)
                             .set_data_type(dataType(t.type)));
  }
  void output(const Tensor &made, const FusedTensor &t, int64_t uid) {
    made->set_output(true)
        .set_uid(uid)
        .set_dim(t.sizes)
        .set_stride(t.strides)
        .set_data_type(dataType(t.type));
  }
};

// Gradients sum over queries in a fixed order, as all results here; with
// MERAK_NONDETERMINISTIC=1 in whichever order is fastest.
bool deterministic() {
  const char *text = std::getenv("MERAK_NONDETERMINISTIC");
  return !text || std::strcmp(text, "1") != 0;
}

template <typename Attributes>
Attributes attentionAttributes(const FusedAttention &a) {
  Attributes attributes;
  attributes.set_attn_scale(a.scale);
  if (a.causal && a.q.sizes[2] == a.k.sizes[2])
    attributes.set_causal_mask(true);
  else if (a.causal)
    attributes.set_causal_mask_bottom_right(true);
  return attributes;
}

Builder build(const FusedAttention &a, int major, int minor) {
  Builder b(major, minor);
  const Tensor q = b.input(a.q), k = b.input(a.k), v = b.input(a.v);
  if (!a.backward) {
    auto attributes = attentionAttributes<fe::graph::SDPA_attributes>(a);
    attributes.set_generate_stats(true);
    auto [out, lse] = b.graph->sdpa(q, k, v, attributes);
    b.output(out, a.out, 4);
    b.output(lse, a.lse, 5);
    return b;
  }
  const Tensor out = b.input(a.out), lse = b.input(a.lse);
  const Tensor dout = b.input(a.dout);
  auto attributes = attentionAttributes<fe::graph::SDPA_backward_attributes>(a);
  attributes.set_deterministic_algorithm(deterministic());
  auto [dq, dk, dv] =
      b.graph->sdpa_backward(q, k, v, out, dout, lse, attributes);
  b.output(dq, a.dq, 7);
  b.output(dk, a.dk, 8);
  b.output(dv, a.dv, 9);
  return b;
}

Builder build(const FusedConvolution &c, int major, int minor) {
  Builder b(major, minor);
  if (deterministic())
    b.avoided.push_back(fe::NumericalNote_t::NONDETERMINISTIC);
  // As for products: f32 is not rounded for tensor cores unless asked for.
  const char *tf32 = std::getenv("MERAK_TF32");
  if (c.x.type == Type::F32 && !(tf32 && std::strcmp(tf32, "1") == 0)) {
    b.avoided.push_back(fe::NumericalNote_t::TENSOR_CORE);
    b.avoided.push_back(fe::NumericalNote_t::DOWN_CONVERT_INPUTS);
  }
  auto with = [&](auto attributes) {
    attributes.set_pre_padding(c.padBegin)
        .set_post_padding(c.padEnd)
        .set_stride(c.strides)
        .set_dilation(c.dilations);
    return attributes;
  };
  // x, w, y are operands 1, 2, 3; the result is none of the inputs.
  if (c.kind == FusedConvolution::Forward) {
    const Tensor x = b.input(c.x), w = b.input(c.w);
    b.output(
        b.graph->conv_fprop(x, w, with(fe::graph::Conv_fprop_attributes())),
        c.y, 3);
  } else if (c.kind == FusedConvolution::GradInput) {
    b.operands = 1;
    const Tensor w = b.input(c.w), y = b.input(c.y);
    b.output(
        b.graph->conv_dgrad(y, w, with(fe::graph::Conv_dgrad_attributes())),
        c.x, 1);
  } else {
    const Tensor x = b.input(c.x);
    b.operands = 2;
    const Tensor y = b.input(c.y);
    b.output(
        b.graph->conv_wgrad(y, x, with(fe::graph::Conv_wgrad_attributes())),
        c.w, 2);
  }
  return b;
}

// Everything up to a plan that the library promises to run; false if it has
// none.
bool finish(const Builder &builder, cudnnHandle_t handle) {
  fe::graph::Graph &graph = *builder.graph;
  if (!graph.validate().is_good() ||
      !graph.build_operation_graph(handle).is_good() ||
      !graph
           .create_execution_plans(
               {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK})
           .is_good())
    return false;
  if (!builder.avoided.empty())
    graph.deselect_numeric_notes(builder.avoided);
  return graph.check_support().is_good() && graph.build_plans().is_good();
}

class Graph : public CudnnGraph {
public:
  explicit Graph(std::shared_ptr<fe::graph::Graph> graph)
      : graph_(std::move(graph)) {}
  Status run(void *handle, std::span<void *const> operands, void *memory,
             void *stream) override {
    try {
      const auto native = static_cast<cudnnHandle_t>(handle);
      const cudnnStatus_t status =
          fe::detail::set_stream(native, static_cast<cudaStream_t>(stream));
      if (status != CUDNN_STATUS_SUCCESS)
        return Status::error(fmt::format("cudnnSetStream: {}",
                                         fe::detail::get_error_string(status)));
      std::unordered_map<int64_t, void *> addresses;
      for (size_t i = 0; i < operands.size(); ++i)
        addresses[static_cast<int64_t>(i) + 1] = operands[i];
      fe::error_t error = graph_->execute(native, addresses, memory);
      return error.is_good() ? Status()
                             : Status::error("cuDNN: " + error.get_message());
    } catch (const std::exception &error) {
      return Status::error(fmt::format("cuDNN: {}", error.what()));
    }
  }

private:
  std::shared_ptr<fe::graph::Graph> graph_;
};

// The frontend throws where a library is missing or too old.
template <typename Problem>
Result<std::unique_ptr<CudnnGraph>>
graphOf(const Problem &problem, void *handle, int major, int minor) {
  try {
    Builder builder = build(problem, major, minor);
    int64_t bytes = 0;
    if (!finish(builder, static_cast<cudnnHandle_t>(handle)) ||
        !builder.graph->get_workspace_size(bytes).is_good())
      return Status::error("cuDNN has no kernel");
    auto graph = std::make_unique<Graph>(builder.graph);
    graph->workspace = static_cast<uint64_t>(bytes);
    return std::unique_ptr<CudnnGraph>(std::move(graph));
  } catch (const std::exception &error) {
    return Status::error(fmt::format("cuDNN: {}", error.what()));
  }
}

} // namespace

int cudnnMajor() { return CUDNN_MAJOR; }
size_t cudnnBuilt() { return CUDNN_VERSION; }

Result<void *> createCudnn(void *library) {
  try {
    fe::cudnn_dlhandle = library;
    cudnnHandle_t handle = nullptr;
    const cudnnStatus_t status = fe::detail::create_handle(&handle);
    if (status == CUDNN_STATUS_SUCCESS)
      return static_cast<void *>(handle);
    return Status::error(
        fmt::format("cudnnCreate: {}", fe::detail::get_error_string(status)));
  } catch (const std::exception &error) {
    return Status::error(error.what());
  }
}

void destroyCudnn(void *handle) {
  fe::detail::destroy_handle(static_cast<cudnnHandle_t>(handle));
}

size_t cudnnVersion() { return fe::detail::get_backend_version(); }

Result<std::unique_ptr<CudnnGraph>> cudnnGraph(const FusedAttention &attention,
                                               void *handle, int major,
                                               int minor) {
  return graphOf(attention, handle, major, minor);
}
Result<std::unique_ptr<CudnnGraph>>
cudnnGraph(const FusedConvolution &convolution, void *handle, int major,
           int minor) {
  return graphOf(convolution, handle, major, minor);
}

} // namespace merak::cuda

#else

namespace merak::cuda {

namespace {
Status missing() {
  return Status::error("built without the headers of its frontend");
}
} // namespace

int cudnnMajor() { return 0; }
size_t cudnnBuilt() { return 0; }
Result<void *> createCudnn(void *) { return missing(); }
void destroyCudnn(void *) {}
size_t cudnnVersion() { return 0; }
Result<std::unique_ptr<CudnnGraph>> cudnnGraph(const FusedAttention &, void *,
                                               int, int) {
  return missing();
}
Result<std::unique_ptr<CudnnGraph>> cudnnGraph(const FusedConvolution &, void *,
                                               int, int) {
  return missing();
}

} // namespace merak::cuda

#endif
