#include "runtime/layout/LayoutText.h"

#include <cctype>
#include <charconv>
#include <fmt/format.h>

namespace merak::layout {
namespace {

class Parser {
public:
  explicit Parser(const std::string &text) : text_(text) {}

  Result<Layout> run() {
    Layout layout;
    expect('[', "'['");
    while (ok() && !take(']')) {
      if (!layout.dims.empty())
        expect(',', "',' or ']'");
      layout.dims.push_back(dim());
    }
    if (ok() && takeWord("partial"))
      layout.partial = names();
    if (ok() && !atEnd())
      fail("the end");
    if (!ok())
      return Status::error(problem_);
    return layout;
  }

private:
  bool ok() const { return problem_.empty(); }
  void skip() {
    while (at_ < text_.size() && text_[at_] == ' ')
      ++at_;
  }
  bool atEnd() {
    skip();
    return at_ == text_.size();
  }
  void fail(const std::string &wanted) {
    if (!ok())
      return;
    const std::string found =
        atEnd() ? "nothing" : fmt::format("'{}'", text_[at_]);
    problem_ = fmt::format("layout '{}': expected {} at character {}, found {}",
                           text_, wanted, at_ + 1, found);
  }
  bool take(char c) {
    if (!ok() || atEnd() || text_[at_] != c)
      return false;
    ++at_;
    return true;
  }
  void expect(char c, const std::string &wanted) {
    if (!take(c))
      fail(wanted);
  }
  std::string word() {
    skip();
    std::string found;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) ||
            text_[at_] == '_'))
      found += text_[at_++];
    return found;
  }
  bool takeWord(const std::string &wanted) {
    const size_t start = at_;
    if (word() == wanted)
      return true;
    at_ = start;
    return false;
  }
  std::string name() {
    skip();
    if (atEnd() || !(std::isalpha(static_cast<unsigned char>(text_[at_])) ||
                     text_[at_] == '_'))
      fail("the name of an axis");
    return ok() ? word() : "";
  }
  std::vector<std::string> names() {
    std::vector<std::string> found;
    expect('(', "'('");
    do
      found.push_back(name());
    while (take(','));
    expect(')', "',' or ')'");
    return found;
  }
  Factor factor() {
    Factor result;
    skip();
    const char *begin = text_.data() + at_, *end = text_.data() + text_.size();
    auto [rest, error] = std::from_chars(begin, end, result.size);
    if (error != std::errc() || result.size < 1)
      fail("a size of at least 1");
    else
      at_ += size_t(rest - begin);
    if (!take('@'))
      return result;
    if (!atEnd() && text_[at_] == '(')
      result.axes = names();
    else
      result.axes = {name()};
    return result;
  }
  DimLayout dim() {
    DimLayout result;
    do
      result.factors.push_back(factor());
    while (take('x')); // also right before a size
    return result;
  }

  const std::string &text_;
  size_t at_ = 0;
  std::string problem_;
};

} // namespace

Result<Layout> parseLayout(const std::string &text) {
  return Parser(text).run();
}

} // namespace merak::layout
