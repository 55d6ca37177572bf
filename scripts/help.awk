# Prints the targets of a Makefile with their "## ..." notes, then the settings.
BEGIN { FS = ":.*## "; print "Targets:" }
/^[a-z][a-z -]*:.*## / { printf "  %-22s %s\n", $1, $2 }
END {
    print "\nSettings, on the command line or exported:"
    print "  PYTHON=python3.12      the interpreter (3.11 or newer) to make the environment from"
    print "  VENV=.venv             where the environment goes"
    print "  TORCH=\"torch==2.14.0\"  another torch than the locked one"
    print "  TORCH_INDEX=URL        a package index that has it (a CPU-only or a CUDA build, say)"
    print "  SYSTEM_TORCH=1         install no torch: use the one that PYTHON has"
    print "  UV=/path/to/uv         a uv to use; otherwise the one on PATH, or one is fetched into .cache"
    print "  CARGO_TARGET_DIR=DIR   where Rust builds go, as always with cargo"
    print "\n  make test PYTHON=/opt/conda/bin/python SYSTEM_TORCH=1"
}
