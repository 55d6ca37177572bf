# Prints the targets of a Makefile with their "## ..." notes, then the settings.
BEGIN { FS = ":.*## "; print "Targets:" }
/^[a-z][a-z -]*:.*## / { printf "  %-22s %s\n", $1, $2 }
END {
    print "\nSettings, on the command line or exported:"
    print "  PYTHON=python3.12      interpreter (3.11 or newer) for the environment"
    print "  VENV=.venv             folder of the environment"
    print "  TORCH=\"torch==2.14.0\"  torch to install instead of the locked version"
    print "  TORCH_INDEX=URL        package index to get it from (for a CPU-only or CUDA build)"
    print "  SYSTEM_TORCH=1         install no torch: use that of PYTHON"
    print "  UV=/path/to/uv         uv to use; default: the one on PATH, else one fetched into .cache"
    print "  CARGO_TARGET_DIR=DIR   folder for Rust builds, as always with cargo"
    print "\n  make test PYTHON=/opt/conda/bin/python SYSTEM_TORCH=1"
}
