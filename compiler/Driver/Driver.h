// merakc: from a model file and options to a plan directory.
#pragma once

namespace merak {

// Exit code: 0 done, 1 the user's input failed (one located sentence per
// problem on stderr), 2 wrong usage, 70 a bug of ours.
int merakcMain(int argc, char **argv);

} // namespace merak
