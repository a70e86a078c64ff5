// What a tool says of a command line that CLI11 does not take.
#pragma once

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace merak {

// How many letters are to be changed, put in or left out (Levenshtein 1966).
inline size_t lettersBetween(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j)
    row[j] = j;
  for (size_t i = 0; i < a.size(); ++i) {
    size_t before = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j)
      before = std::exchange(
          row[j + 1],
          std::min({before + (a[i] != b[j]), row[j] + 1, row[j + 1] + 1}));
  }
  return row.back();
}

// The name that somebody may have meant; empty: none is like it.
inline std::string nearestName(std::string_view name,
                               const std::vector<std::string> &names) {
  std::string nearest;
  size_t least = name.size() / 3 + 1;
  for (const std::string &other : names)
    if (const size_t letters = lettersBetween(name, other); letters < least) {
      least = letters;
      nearest = other;
    }
  return nearest;
}

// What CLI11 says, and which option or command may be meant.
inline std::string sentenceOf(const CLI::App &app, const CLI::Error &error) {
  std::string text = error.what();
  std::vector<std::string> names, commands;
  const auto addOptions = [&](const CLI::App &of) {
    for (const CLI::Option *option : of.get_options())
      names.insert(names.end(), option->get_lnames().begin(),
                   option->get_lnames().end());
  };
  addOptions(app);
  for (const CLI::App *command : app.get_subcommands())
    addOptions(*command);
  for (const CLI::App *command : app.get_subcommands({}))
    commands.push_back(command->get_name());
  const auto is = [&](CLI::ExitCodes code) {
    return error.get_exit_code() == int(code);
  };
  if (is(CLI::ExitCodes::ExtrasError))
    for (const std::string &argument : app.remaining(/*recurse=*/true))
      if (argument.starts_with("--"))
        if (const std::string meant =
                nearestName(argument.substr(2, argument.find('=') - 2), names);
            !meant.empty())
          text += fmt::format("; did you mean --{}?", meant);
  if (is(CLI::ExitCodes::RequiredError) && !commands.empty() &&
      app.get_subcommands().empty())
    text = fmt::format("expected one of the commands {}",
                       fmt::join(commands, ", "));
  return text;
}

// Told as all else that is wrong.
inline void tellErrorsAs(CLI::App &app, const std::string &tool) {
  app.failure_message([tool](const CLI::App *of, const CLI::Error &error) {
    return fmt::format("{}: error: {} (see --help)\n", tool,
                       sentenceOf(*of, error));
  });
}

} // namespace merak
