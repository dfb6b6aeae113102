// Catch2 2 wants this before its header in exactly one unit; Catch2 3 ignores it.
#define CATCH_CONFIG_RUNNER
#include "support/catch.hpp"

int main(int argc, char** argv) { return Catch::Session().run(argc, argv); }
