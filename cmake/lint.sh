# Static checks of C sources and shell scripts; any finding is an error. Run through `make lint`.
set -eu
echo "lint: cppcheck"
cppcheck --version
