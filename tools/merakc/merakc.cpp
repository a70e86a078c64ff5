#include "compiler/Driver/Driver.h"

int main(int argc, char **argv) { return merak::merakcMain(argc, argv); }
