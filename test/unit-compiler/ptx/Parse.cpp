// The text of a module as instructions.
#include "test/unit-compiler/ptx/Ptx.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>

namespace merak::ptx {

namespace {

// Names, numbers and marks of a line without comments.
std::vector<std::string> tokensOf(const std::string &line) {
  std::vector<std::string> tokens;
  auto isName = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' ||
           c == '$' || c == '%' || c == '.';
  };
  for (size_t at = 0; at < line.size();) {
    if (std::isspace(static_cast<unsigned char>(line[at]))) {
      ++at;
    } else if (line.compare(at, 2, "//") == 0) {
      break;
    } else if (isName(line[at]) ||
               (line[at] == '-' && at + 1 < line.size() &&
                std::isdigit(static_cast<unsigned char>(line[at + 1])))) {
      size_t end = at + 1;
      while (end < line.size() && isName(line[end]))
        ++end;
      tokens.push_back(line.substr(at, end - at));
      at = end;
    } else {
      tokens.push_back(line.substr(at++, 1));
    }
  }
  return tokens;
}

std::vector<std::string> split(const std::string &name) {
  std::vector<std::string> parts;
  size_t at = 0;
  for (size_t dot; (dot = name.find('.', at)) != std::string::npos;
       at = dot + 1)
    parts.push_back(name.substr(at, dot - at));
  parts.push_back(name.substr(at));
  return parts;
}

// Of b32, s8, f64 ...: bytes, 0 if it is no type.
int bytesOf(const std::string &type) {
  if (type.size() < 2 || !std::strchr("bsuf", type[0]) ||
      !std::all_of(type.begin() + 1, type.end(),
                   [](char c) { return c >= '0' && c <= '9'; }))
    return 0;
  const int bits = std::stoi(type.substr(1));
  return bits == 8 || bits == 16 || bits == 32 || bits == 64 ? bits / 8 : 0;
}

class Parser {
public:
  explicit Parser(const std::string &text) : text_(text) {}

  Result<std::vector<Entry>> parse() {
    for (size_t at = 0; at < text_.size();) {
      const size_t end = std::min(text_.find('\n', at), text_.size());
      ++line_;
      tokens_ = tokensOf(text_.substr(at, end - at));
      at = end + 1;
      next_ = 0;
      if (!tokens_.empty())
        MERAK_RETURN_IF_ERROR(takeLine());
    }
    if (inBody_ || inHead_)
      return bad("the entry does not end");
    return std::move(entries_);
  }

private:
  Status bad(const std::string &what) const {
    return Status::error(fmt::format("line {}: {}", line_, what));
  }
  bool has(const std::string &token) const {
    return next_ < tokens_.size() && tokens_[next_] == token;
  }
  bool skip(const std::string &token) {
    return has(token) ? (++next_, true) : false;
  }
  std::string take() {
    return next_ < tokens_.size() ? tokens_[next_++] : std::string();
  }

  Status takeLine() {
    if (inBody_)
      return takeBody();
    if (inHead_)
      return takeHead();
    if (std::find(tokens_.begin(), tokens_.end(), ".entry") == tokens_.end())
      return {}; // version, target, address size
    while (!skip(".entry"))
      ++next_;
    entries_.emplace_back();
    entries_.back().name = take();
    registers_.clear();
    labels_.clear();
    jumps_.clear();
    symbols_.clear();
    inHead_ = true;
    return {};
  }

  Status takeHead() {
    if (skip(".param")) {
      std::string name;
      for (const std::string &token : tokens_)
        if (token != "," && token != ")")
          name = token;
      symbols_[name] = {Operand::Parameter, entries_.back().parameters++, 0};
      if (tokens_[1] != ".u64" && tokens_[1] != ".b64")
        return bad("expected a parameter of 8 bytes, found " + tokens_[1]);
    } else if (skip(".reqntid") || skip(".maxntid")) {
      entries_.back().threads = std::atoi(take().c_str());
    } else if (has(".minnctapersm")) {
      // how many registers a thread may have
    } else if (skip("{")) {
      inHead_ = false;
      inBody_ = true;
    } else if (!has(")")) {
      return bad("not known: " + tokens_[0]);
    }
    return {};
  }

  Status takeBody() {
    Entry &entry = entries_.back();
    if (has("}"))
      return endEntry();
    if (skip(".reg")) {
      take(); // the type: every register has 8 bytes
      return {};
    }
    if (skip(".shared")) {
      int64_t align = 1;
      if (skip(".align"))
        align = std::atoi(take().c_str());
      const int size = bytesOf(take().substr(1));
      const std::string name = take();
      if (size == 0 || !skip("["))
        return bad("expected an array");
      const int64_t bytes = size * std::atoll(take().c_str());
      const int64_t begin = (entry.sharedBytes + align - 1) / align * align;
      symbols_[name] = {Operand::Immediate, begin, 0};
      entry.sharedBytes = begin + bytes;
      return {};
    }
    if (tokens_.size() >= 2 && tokens_[1] == ":") {
      labels_[tokens_[0]] = static_cast<int64_t>(entry.code.size());
      return {};
    }
    if (has("{")) { // declarations of the part of a register
      ++next_;
      while (next_ < tokens_.size() && !skip(";"))
        ++next_;
    }
    return takeInstruction();
  }

  Status endEntry() {
    Entry &entry = entries_.back();
    for (const auto &[at, label, line] : jumps_) {
      const auto found = labels_.find(label);
      if (found == labels_.end())
        return Status::error(fmt::format("line {}: no label {}", line, label));
      entry.code[at].target = found->second;
    }
    if (entry.threads < 1)
      return bad(entry.name + ": expected .reqntid");
    entry.registers = static_cast<int>(registers_.size());
    inBody_ = false;
    return {};
  }

  int registerOf(const std::string &name) {
    return static_cast<int>(
        registers_.emplace(name, static_cast<int>(registers_.size()))
            .first->second);
  }

  Status takeOperand(std::vector<Operand> &to) {
    Operand operand;
    const std::string token = take();
    static const std::string kSpecials[] = {"%tid.x", "%ctaid.x", "%ntid.x",
                                            "%nctaid.x", "%laneid"};
    const auto *special =
        std::find(std::begin(kSpecials), std::end(kSpecials), token);
    if (special != std::end(kSpecials)) {
      operand.kind = Operand::Special;
      operand.value = special - std::begin(kSpecials);
    } else if (token.starts_with("%")) {
      operand.kind = Operand::Register;
      operand.value = registerOf(token);
    } else if (token.starts_with("0f") || token.starts_with("0d")) {
      operand.value =
          static_cast<int64_t>(std::strtoull(token.c_str() + 2, nullptr, 16));
    } else if (symbols_.count(token)) {
      operand = symbols_[token];
    } else if (!token.empty() &&
               (token[0] == '-' || (token[0] >= '0' && token[0] <= '9'))) {
      operand.value =
          token[0] == '-'
              ? std::strtoll(token.c_str(), nullptr, 0)
              : static_cast<int64_t>(std::strtoull(token.c_str(), nullptr, 0));
    } else if (token == "tmp" || token == "_") {
      operand.kind = Operand::Register; // written, not read
      operand.value = registerOf(token);
    } else {
      return bad("an operand is not known: " + token);
    }
    if (skip("+"))
      operand.offset = std::strtoll(take().c_str(), nullptr, 0);
    to.push_back(operand);
    return {};
  }

  Status takeInstruction() {
    Entry &entry = entries_.back();
    Instruction in;
    in.line = line_;
    if (skip("@")) {
      in.guardIs = !skip("!");
      in.guard = registerOf(take());
    }
    const std::string name = take();
    // Operands in order; of braces how many.
    std::string label;
    int inBraces = 0;
    bool inFront = false;
    bool predicate = false;
    if (name.starts_with("bra")) {
      label = take();
    } else {
      while (next_ < tokens_.size() && !has(";")) {
        if (skip(",") || skip("[") || skip("]") || skip("}"))
          continue;
        if (skip("|")) {
          predicate = true;
          continue;
        }
        if (skip("{")) {
          const size_t before = in.operands.size();
          while (!skip("}")) {
            if (next_ >= tokens_.size())
              return bad("expected }");
            if (!skip(","))
              MERAK_RETURN_IF_ERROR(takeOperand(in.operands));
          }
          inBraces = static_cast<int>(in.operands.size() - before);
          inFront = before == 0;
          continue;
        }
        MERAK_RETURN_IF_ERROR(takeOperand(in.operands));
      }
    }
    MERAK_RETURN_IF_ERROR(understand(name, in, inBraces, inFront, predicate));
    if (in.kind == Instruction::Branch)
      jumps_.push_back({entry.code.size(), label, line_});
    entry.code.push_back(std::move(in));
    return {};
  }

  // `parts`: operands in braces, in front or behind.
  Status understand(const std::string &name, Instruction &in, int parts,
                    bool inFront, bool predicate) {
    const std::vector<std::string> words = split(name);
    auto says = [&](const char *word) {
      return std::find(words.begin(), words.end(), word) != words.end();
    };
    const std::string &what = words[0];
    auto expect = [&](size_t count) {
      return in.operands.size() == count
                 ? Status()
                 : bad(fmt::format("{}: expected {} operands, found {}", name,
                                   count, in.operands.size()));
    };
    if (what == "ld" || what == "st") {
      in.kind = what == "ld" ? Instruction::Load : Instruction::Store;
      in.space = says("shared")  ? Instruction::Shared
                 : says("param") ? Instruction::Parameters
                                 : Instruction::Global;
      if (in.space == Instruction::Global && !says("global"))
        return bad(name + ": which memory is not said");
      in.bytes = bytesOf(words.back());
      in.isSigned = words.back()[0] == 's';
      const size_t count = says("v2") ? 2 : says("v4") ? 4 : 1;
      if (in.bytes == 0)
        return bad(name + ": no such type");
      // Stores name the address first.
      if (in.kind == Instruction::Store && !in.operands.empty())
        std::rotate(in.operands.begin(), in.operands.begin() + 1,
                    in.operands.end());
      in.results = in.kind == Instruction::Load ? static_cast<int>(count) : 0;
      return expect(count + 1);
    }
    if (what == "mov" && parts > 0) {
      in.kind = inFront ? Instruction::Unpack : Instruction::Pack;
      in.bytes = bytesOf(words.back()) / parts;
      in.results = inFront ? parts : 1;
      if (in.bytes == 0)
        return bad(name + ": no such type");
      return expect(static_cast<size_t>(parts) + 1);
    }
    if (what == "shfl") {
      in.kind = Instruction::Shuffle;
      in.results = predicate ? 2 : 1;
      if (!says("sync") || !says("b32"))
        return bad(name + " is not known");
      in.mode = says("bfly")  ? Instruction::Butterfly
                : says("idx") ? Instruction::Index
                : says("up")  ? Instruction::Up
                              : Instruction::Down;
      return expect(static_cast<size_t>(in.results) + 4);
    }
    if (name == "bar.warp.sync") {
      in.kind = Instruction::WarpBarrier;
      return expect(1);
    }
    if (name == "bar.sync" || name == "barrier.sync.aligned" ||
        name == "barrier.cta.sync.aligned") {
      in.kind = Instruction::Barrier;
      return expect(1);
    }
    if (what == "bra") {
      in.kind = Instruction::Branch;
      return {};
    }
    if (what == "ret" || what == "exit") {
      in.kind = Instruction::Return;
      return {};
    }
    in.compute = operationOf(name);
    if (!in.compute)
      return bad(name + " is not known");
    in.results = 1;
    entries_.back().isApproximate |= says("approx");
    if (in.operands.size() < 2 || in.operands.size() > 4)
      return expect(2);
    return {};
  }

  struct Jump {
    size_t at;
    std::string label;
    int line;
  };
  const std::string &text_;
  std::vector<Entry> entries_;
  std::vector<std::string> tokens_;
  size_t next_ = 0;
  int line_ = 0;
  bool inHead_ = false, inBody_ = false;
  std::map<std::string, int> registers_;
  std::map<std::string, int64_t> labels_;
  std::map<std::string, Operand> symbols_;
  std::vector<Jump> jumps_;
};

} // namespace

Result<Module> Module::parse(const std::string &text) {
  Result<std::vector<Entry>> entries = Parser(text).parse();
  if (!entries.ok())
    return entries.status();
  Module module;
  module.entries_ = std::move(*entries);
  return module;
}

const Entry *Module::find(const std::string &name) const {
  for (const Entry &entry : entries_)
    if (entry.name == name)
      return &entry;
  return nullptr;
}

} // namespace merak::ptx
