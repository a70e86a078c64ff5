#include "runtime/plan/Print.h"
#include "runtime/layout/Strides.h"
#include "runtime/plan/Describe.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>

using namespace merak::planpb;

namespace merak {
namespace {

using Shape = google::protobuf::RepeatedField<int64_t>;

bool rowMajor(const Shape &shape, const Shape &strides) {
  return layout::isDense({shape.data(), size_t(shape.size())},
                         {strides.data(), size_t(strides.size())});
}

std::string axes(const google::protobuf::RepeatedPtrField<Axis> &list) {
  std::string text;
  for (const Axis &axis : list)
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", axis.name(),
                        axis.size());
  return text;
}

std::string optimizerText(const Optimizer &optimizer) {
  std::string text;
  switch (optimizer.kind()) {
  case Optimizer::SGD:
    text = fmt::format("sgd lr={} momentum={} dampening={} nesterov={}",
                       optimizer.lr(), optimizer.momentum(),
                       optimizer.dampening(), optimizer.nesterov());
    break;
  case Optimizer::ADAMW:
  case Optimizer::ADAM:
    text = fmt::format("{} lr={} betas={}/{} eps={}",
                       optimizer.kind() == Optimizer::ADAM ? "adam" : "adamw",
                       optimizer.lr(), optimizer.beta1(), optimizer.beta2(),
                       optimizer.eps());
    if (optimizer.plain_root())
      text += fmt::format(" (of ONNX: post_decay={} count from {})",
                          optimizer.post_decay(), optimizer.first_count());
    break;
  case Optimizer::ADAGRAD:
    text = fmt::format("adagrad lr={} lr_decay={} eps={}", optimizer.lr(),
                       optimizer.lr_decay(), optimizer.eps());
    break;
  default:
    return "none";
  }
  text += fmt::format(" weight_decay={} grad_clip={}", optimizer.weight_decay(),
                      optimizer.grad_clip());
  if (optimizer.schedule() == Optimizer::CONSTANT)
    return text;
  return text +
         fmt::format(
             " schedule={} warmup={} total={} min_factor={}",
             optimizer.schedule() == Optimizer::LINEAR ? "linear" : "cosine",
             optimizer.warmup(), optimizer.total(), optimizer.min_factor());
}

std::string sourceText(const Source &source) {
  switch (source.kind()) {
  case Source::FILE:
    return fmt::format("file \"{}\" at {} + {}{}", source.path(),
                       source.offset(), source.length(),
                       source.dtype() != DTYPE_INVALID
                           ? fmt::format(" as {}", dtypeName(source.dtype()))
                           : std::string());
  case Source::CONSTANTS:
    return fmt::format("constants at {} + {}", source.offset(),
                       source.length());
  case Source::ZERO:
    return "zero";
  default:
    return "absent";
  }
}

const char *roleName(Tensor::Role role) {
  switch (role) {
  case Tensor::PARAMETER:
    return "parameter";
  case Tensor::FROZEN:
    return "frozen";
  case Tensor::OPTIMIZER:
    return "optimizer";
  case Tensor::CONSTANT:
    return "constant";
  case Tensor::STATISTIC:
    return "statistic";
  default:
    return "invalid";
  }
}

class ProgramPrinter {
public:
  explicit ProgramPrinter(const Program &program) : program_(program) {
    // Names that are not unique carry their index.
    std::map<std::string, int> uses;
    for (const Buffer &buffer : program.buffers())
      ++uses[buffer.name()];
    for (int b = 0; b < program.buffers_size(); ++b) {
      const std::string &name = program.buffers(b).name();
      names_.push_back(uses[name] == 1 ? name : fmt::format("{}#{}", name, b));
    }
  }

  void buffers(std::string &out) const {
    for (int b = 0; b < program_.buffers_size(); ++b) {
      const Buffer &buffer = program_.buffers(b);
      out += fmt::format("  %{} {} {} @{}+{}", names_[b],
                         describe(buffer.dtype(), buffer.shape()),
                         categoryName(buffer.category()), buffer.offset(),
                         buffer.bytes());
      if (buffer.slots() > 1)
        out += fmt::format(" x{} by {} class {}", buffer.slots(),
                           buffer.slot_stride(), buffer.slot_class());
      if (!buffer.tensor().empty())
        out += fmt::format(" = \"{}\" {}", buffer.tensor(),
                           fromProto(buffer.layout()).str());
      out += "\n";
    }
  }

  // A summand carries the axes over which it is still to be reduced.
  std::string operand(const Operand &operand) const {
    std::string text = view(operand);
    if (operand.partial_group() == 0)
      return text;
    if (operand.partial_group() > static_cast<uint32_t>(program_.groups_size()))
      return text + "~?";
    return fmt::format(
        "{}~({})", text,
        groupStr(program_.groups(int(operand.partial_group()) - 1)));
  }

  std::string view(const Operand &operand) const {
    if (operand.buffer() >= names_.size())
      return fmt::format("%?{}", operand.buffer());
    const Buffer &buffer = program_.buffers(operand.buffer());
    std::string text = "%" + names_[operand.buffer()];
    // The shape stands only where it is not the buffer's own.
    bool whole = operand.offset() == 0 &&
                 operand.shape_size() == operand.strides_size() &&
                 rowMajor(operand.shape(), operand.strides());
    if (whole && std::equal(operand.shape().begin(), operand.shape().end(),
                            buffer.shape().begin(), buffer.shape().end()))
      return text;
    text += fmt::format("[{}", fmt::join(operand.shape(), ","));
    if (operand.shape_size() != operand.strides_size() ||
        !rowMajor(operand.shape(), operand.strides()))
      text += fmt::format(":{}", fmt::join(operand.strides(), ","));
    if (operand.offset())
      text += fmt::format("+{}", operand.offset());
    return text + "]";
  }

  std::string
  operands(const google::protobuf::RepeatedPtrField<Operand> &list) const {
    std::string text;
    for (const Operand &item : list)
      text += (text.empty() ? "" : ", ") + operand(item);
    return text;
  }

  static std::string scalar(const Scalar &scalar) {
    switch (scalar.value_case()) {
    case Scalar::kI:
      return fmt::format("{}", scalar.i());
    case Scalar::kF:
      return fmt::format("{}f", scalar.f());
    case Scalar::kRuntime:
      return "$" + scalar.runtime();
    case Scalar::kCoordinate:
      return fmt::format("@{}*{}", scalar.coordinate(), scalar.scale());
    default:
      return "?";
    }
  }

  std::string instruction(const Instruction &inst) const {
    std::string text = fmt::format("s{} ", inst.stream());
    if (inst.outputs_size())
      text += operands(inst.outputs()) + (inst.accumulate() ? " += " : " = ");
    text += kindName(inst.kind());
    switch (inst.kind()) {
    case Instruction::RECORD:
    case Instruction::WAIT:
      text += fmt::format(" e{}", inst.event());
      break;
    case Instruction::SEND:
    case Instruction::RECV:
      text +=
          fmt::format(" \"{}\" {} {}", inst.channel(),
                      inst.kind() == Instruction::SEND ? "to" : "from",
                      inst.channel_index()
                          ? fmt::format("channel {}", inst.channel_index() - 1)
                          : axes(inst.peer()));
      break;
    default:
      if (std::string name = opName(inst); !name.empty())
        text += " " + name;
    }
    if (inst.kind() == Instruction::COLLECTIVE)
      text += collective(inst);
    if (inst.inputs_size())
      text += " " + operands(inst.inputs());
    if (inst.scalars_size()) {
      std::string list;
      for (const Scalar &item : inst.scalars())
        list += (list.empty() ? "" : ", ") + scalar(item);
      text += fmt::format(" ({})", list);
    }
    if (inst.attrs_size()) {
      std::map<std::string, std::string> sorted(inst.attrs().begin(),
                                                inst.attrs().end());
      std::string list;
      for (const auto &[key, value] : sorted)
        list += fmt::format("{}{}={}", list.empty() ? "" : " ", key, value);
      text += fmt::format(" {{{}}}", list);
    }
    if (inst.kind() == Instruction::KERNEL)
      text += fmt::format(" rows {}", inst.rows());
    if (inst.submicrobatch())
      text += fmt::format(" part {}", inst.submicrobatch());
    if (!inst.name().empty())
      text += fmt::format(" ; {}", inst.name());
    return text;
  }

  std::string collective(const Instruction &inst) const {
    std::string text;
    if (inst.reduction() != Instruction::REDUCTION_INVALID)
      text += " " + reductionName(inst.reduction());
    if (inst.group() < static_cast<uint32_t>(program_.groups_size()))
      text += fmt::format(" over ({})",
                          groupStr(program_.groups(int(inst.group()))));
    if (inst.collective() == Instruction::ALL_TO_ALL)
      text += fmt::format(" dims {},{}", inst.dim(), inst.dim2());
    else if (inst.collective() == Instruction::ALL_GATHER ||
             inst.collective() == Instruction::REDUCE_SCATTER)
      text += fmt::format(" dim {}", inst.dim());
    return text;
  }

  std::string call(const Call &call) const {
    std::string text =
        call.procedure() < static_cast<uint32_t>(program_.procedures_size())
            ? program_.procedures(call.procedure()).name()
            : fmt::format("?{}", call.procedure());
    if (call.microbatch() >= 0)
      text += fmt::format(" mb {}", call.microbatch());
    if (call.slots_size())
      text += fmt::format(" slots {}", fmt::join(call.slots(), ","));
    for (const CallWait &wait : call.waits())
      text += fmt::format("; s{} waits for s{} of call {}", wait.stream(),
                          wait.on(), wait.call());
    return text;
  }

private:
  const Program &program_;
  std::vector<std::string> names_;
};

// What the two forms (for reading, for comparing) share: headings and lines.
struct Section {
  std::string heading;
  std::vector<std::string> lines;
};

std::vector<std::string> splitLines(const std::string &text) {
  std::vector<std::string> lines;
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::vector<Section> programSections(const Program &program,
                                     const PlanFile *file, bool numbered) {
  std::vector<Section> sections;
  ProgramPrinter printer(program);
  Section head{fmt::format("program {}", program.index()), {}};
  if (file) {
    std::vector<int> ranks;
    for (int r = 0; r < file->ranks_size(); ++r)
      if (file->ranks(r).program() == program.index())
        ranks.push_back(r);
    head.lines.push_back(fmt::format("  ranks {}", rankList(ranks)));
  }
  head.lines.push_back(fmt::format("  arena {} bytes", program.arena_bytes()));
  for (int s = 0; s < program.streams_size(); ++s)
    head.lines.push_back(
        fmt::format("  stream {} \"{}\"", s, program.streams(s).name()));
  for (const Output &output : program.outputs())
    head.lines.push_back(fmt::format(
        "  output \"{}\" %{}", output.name(),
        output.buffer() < static_cast<uint32_t>(program.buffers_size())
            ? program.buffers(output.buffer()).name()
            : "?"));
  if (program.schedule_size())
    head.lines.push_back("  schedule " + str(scheduleOf(program)));
  sections.push_back(std::move(head));

  std::string prefix = fmt::format("program {} ", program.index());
  std::string text;
  printer.buffers(text);
  sections.push_back({prefix + "buffers", splitLines(text)});
  for (const Procedure &procedure : program.procedures()) {
    Section section{fmt::format("{}procedure \"{}\" ({})", prefix,
                                procedure.name(), actionName(procedure)),
                    {}};
    for (int i = 0; i < procedure.instructions_size(); ++i) {
      std::string line = printer.instruction(procedure.instructions(i));
      section.lines.push_back(numbered ? fmt::format("  {:>4} {}", i, line)
                                       : "  " + line);
    }
    sections.push_back(std::move(section));
  }
  Section calls{prefix + "calls", {}};
  for (int c = 0; c < program.calls_size(); ++c)
    calls.lines.push_back(
        fmt::format("  {:>4} {}", c, printer.call(program.calls(c))));
  sections.push_back(std::move(calls));
  return sections;
}

std::vector<Section> planSections(const LoadedPlan &plan, bool numbered) {
  std::vector<Section> sections{{"plan", splitLines(printManifest(plan.file))}};
  for (const Program &program : plan.programs)
    for (Section &section : programSections(program, &plan.file, numbered))
      sections.push_back(std::move(section));
  return sections;
}

std::string join(const std::vector<Section> &sections) {
  std::string text;
  for (const Section &section : sections) {
    text += (text.empty() ? "" : "\n") + section.heading + "\n";
    for (const std::string &line : section.lines)
      text += line + "\n";
  }
  return text;
}

// Shortest edit script (Myers, 1986: greedy furthest-reaching paths). Falls
// back to "all out, all in" when the lists have little in common.
constexpr int kMaxEdits = 2000;

std::vector<std::string> diffLines(const std::vector<std::string> &a,
                                   const std::vector<std::string> &b) {
  int n = static_cast<int>(a.size()), m = static_cast<int>(b.size());
  int limit = std::min(n + m, kMaxEdits);
  std::vector<int> reach(2 * limit + 3, 0);
  std::vector<std::vector<int>> trace;
  int edits = -1;
  for (int d = 0; d <= limit && edits < 0; ++d) {
    trace.push_back(reach);
    for (int k = -d; k <= d; k += 2) {
      int *at = &reach[k + limit + 1];
      int x = k == -d || (k != d && at[-1] < at[1]) ? at[1] : at[-1] + 1;
      while (x < n && x - k < m && x - k >= 0 && a[x] == b[x - k])
        ++x;
      *at = x;
      if (x >= n && x - k >= m) {
        edits = d;
        break;
      }
    }
  }
  std::vector<std::string> result;
  if (edits < 0) {
    for (const std::string &line : a)
      result.push_back("-" + line);
    for (const std::string &line : b)
      result.push_back("+" + line);
    return result;
  }
  int x = n, y = m;
  for (int d = edits; d > 0; --d) {
    const std::vector<int> &before = trace[d];
    int k = x - y;
    bool down =
        k == -d || (k != d && before[k + limit] < before[k + limit + 2]);
    int previous = down ? k + 1 : k - 1;
    int startX = before[previous + limit + 1], startY = startX - previous;
    while (x > startX && y > startY)
      --x, --y;
    if (down)
      result.push_back("+" + b[--y]);
    else
      result.push_back("-" + a[--x]);
    x = startX, y = startY;
  }
  std::reverse(result.begin(), result.end());
  return result;
}

} // namespace

std::string rankList(const std::vector<int> &ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t j = i;
    while (j + 1 < ranks.size() && ranks[j + 1] == ranks[j] + 1)
      ++j;
    text += text.empty() ? "" : ", ";
    text += i == j ? fmt::format("{}", ranks[i])
                   : fmt::format("{}-{}", ranks[i], ranks[j]);
    i = j + 1;
  }
  return text.empty() ? "none" : text;
}

std::string printManifest(const PlanFile &file) {
  std::string out;
  out +=
      fmt::format("  version {} by \"{}\"\n", file.version(), file.producer());
  out += fmt::format("  model \"{}\" in \"{}\" hash {}\n", file.model(),
                     file.model_dir(), file.model_hash());
  for (const SourceFile &source : file.source_files())
    out += fmt::format("  file \"{}\" {} bytes {} {:016x}\n", source.path(),
                       source.bytes(), source.sampled() ? "samples" : "hash",
                       source.hash());
  out += fmt::format("  mode {} device {} schedule {}\n", file.mode(),
                     file.device(), file.schedule());
  if (file.meshes_size() == 0)
    out += fmt::format("  mesh {}\n", axes(file.mesh()));
  for (int m = 0; m < file.meshes_size(); ++m)
    out += fmt::format("  mesh {} {}\n", m, axes(file.meshes(m).axes()));
  for (const NamedGroup &group : file.groups())
    for (const RankList &list : group.lists())
      out += fmt::format("  group \"{}\" of ranks {}\n", group.name(),
                         fmt::join(list.ranks(), ","));
  for (int c = 0; c < file.channels_size(); ++c) {
    std::vector<std::string> pairs;
    for (const RankPair &pair : file.channels(c).pairs())
      pairs.push_back(fmt::format("{}-{}", pair.from(), pair.to()));
    out += fmt::format("  channel {} \"{}\" {}\n", c, file.channels(c).name(),
                       fmt::join(pairs, " "));
  }
  out +=
      fmt::format("  batch {} = {} microbatches of {}{} a replica, {} tokens "
                  "a step\n",
                  file.global_batch(), file.microbatches(), file.microbatch(),
                  submicrobatches(file) > 1
                      ? fmt::format(" in {} parts", submicrobatches(file))
                      : "",
                  file.tokens_per_step());
  out += fmt::format("  optimizer {}\n", optimizerText(file.optimizer()));
  if (!file.kernels().empty())
    out += fmt::format("  kernels \"{}\" for {}\n", file.kernels(),
                       file.kernel_target());
  if (!file.constants().empty())
    out += fmt::format("  constants \"{}\"\n", file.constants());
  if (file.predicted_step_seconds() > 0)
    out += fmt::format("  predicted step {:.6g} s\n",
                       file.predicted_step_seconds());
  for (int r = 0; r < file.ranks_size(); ++r)
    out += fmt::format("  rank {} {} program {}\n", r,
                       axes(file.ranks(r).coords()), file.ranks(r).program());
  for (const Input &input : file.inputs()) {
    out += fmt::format("  input \"{}\" {}{}", input.name(),
                       describe(input.dtype(), input.shape()),
                       input.batched() ? " batched" : "");
    if (input.limit())
      out += fmt::format(" ids below {}", input.limit());
    if (input.has_allowed())
      out += fmt::format(" or {}", input.allowed());
    out += "\n";
  }
  for (const Tensor &tensor : file.tensors())
    out += fmt::format("  {} \"{}\" {} {}\n", roleName(tensor.role()),
                       tensor.name(), describe(tensor.dtype(), tensor.shape()),
                       sourceText(tensor.source()));
  return out;
}

std::string printProgram(const Program &program, const PlanFile *file) {
  return join(programSections(program, file, true));
}

std::string printPlan(const LoadedPlan &plan) {
  return join(planSections(plan, true));
}

std::string diffPlans(const LoadedPlan &a, const LoadedPlan &b) {
  std::vector<Section> left = planSections(a, false);
  std::vector<Section> right = planSections(b, false);
  std::map<std::string, const Section *> byHeading;
  for (const Section &section : right)
    byHeading[section.heading] = &section;
  std::string text;
  auto report = [&](const std::string &heading,
                    const std::vector<std::string> &lines) {
    if (lines.empty())
      return;
    text += "@ " + heading + "\n";
    for (const std::string &line : lines)
      text += line + "\n";
  };
  std::set<std::string> seen;
  for (const Section &section : left) {
    seen.insert(section.heading);
    auto other = byHeading.find(section.heading);
    if (other == byHeading.end()) {
      std::vector<std::string> lines;
      for (const std::string &line : section.lines)
        lines.push_back("-" + line);
      report(section.heading + " (only in the first)", lines);
    } else {
      report(section.heading, diffLines(section.lines, other->second->lines));
    }
  }
  for (const Section &section : right) {
    if (seen.count(section.heading))
      continue;
    std::vector<std::string> lines;
    for (const std::string &line : section.lines)
      lines.push_back("+" + line);
    report(section.heading + " (only in the second)", lines);
  }
  return text;
}

} // namespace merak
