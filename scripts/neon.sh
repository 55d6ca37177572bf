#!/usr/bin/env bash
# Run the core's tests on NEON: cross-compile for aarch64, execute under qemu's user emulation. With
# arguments, run cargo with them instead, for that target.
#
# The standard library for aarch64 comes from rustup where that target is installed, and otherwise
# from Debian, whose packages of it (a rustc and a foreign-architecture libstd) are used together.
# What is missing is installed by apt with CI=true or NEON_INSTALL=1, as root. Where that cannot
# be done it is an error, unless NEON_OPTIONAL=1, which says so and passes.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
linker=aarch64-linux-gnu-gcc
runner=qemu-aarch64
# libc6:arm64 brings the loader where the runner looks for it: given -L instead, it hangs.
packages=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross libc6:arm64 qemu-user)
debian_rust=(rustc-web libstd-rust-web-dev:arm64)

has_target() {
    local dir
    dir=$("$1" --print target-libdir --target "$target" 2>/dev/null) || return 1
    compgen -G "$dir/libstd-*.rlib" >/dev/null
}

# Prints the compiler that can build for the target, if any: rustup's first.
compiler() {
    if has_target rustc; then
        rustc --print sysroot | sed 's,$,/bin/rustc,'
    elif [ -x /usr/bin/rustc ] && has_target /usr/bin/rustc; then
        echo /usr/bin/rustc
    else
        return 1
    fi
}

complete() {
    compiler >/dev/null && command -v $linker $runner >/dev/null && [ -e /lib/ld-linux-aarch64.so.1 ]
}

leave_out() {
    echo "NEON tests left out: $1"
    echo "They need the $target target of Rust, $linker, $runner and an arm64 libc;"
    echo "on Debian: dpkg --add-architecture arm64 && apt-get update && apt-get install ${packages[*]} ${debian_rust[*]}"
    [ "${NEON_OPTIONAL:-}" = 1 ] && exit 0
    exit 1
}

install_missing() {
    [ "${CI:-}" = true ] || [ "${NEON_INSTALL:-}" = 1 ] || leave_out "tools are missing (NEON_INSTALL=1 installs them)"
    command -v apt-get dpkg >/dev/null || leave_out "tools are missing, and this is not a Debian system"
    [ "$(id -u)" = 0 ] || leave_out "tools are missing, and only root can install them"
    compiler >/dev/null || packages+=("${debian_rust[@]}")
    echo "==> installing ${packages[*]}"
    dpkg --add-architecture arm64
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${packages[@]}" >/dev/null
    complete || { echo "error: installed, but the cross tools are still not complete" >&2; exit 1; }
}

case $(uname -sm) in
    "Linux aarch64") echo "This machine has NEON itself: make test covers it."; exit 0 ;;
    Linux\ *) complete || install_missing ;;
    *) leave_out "user emulation needs Linux" ;;
esac

# Emulation is slow: fewer random cases, unless asked otherwise, and of some lists of codecs one in a
# few. All levels and lengths stay.
export PROPTEST_CASES=${PROPTEST_CASES:-32} GRADWIRE_EMULATED=1
export RUSTC; RUSTC=$(compiler)
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$linker
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=$runner
export GRADWIRE_SIMD=neon
echo "==> the core on NEON, by $("$RUSTC" --version) under $runner" >&2
# Left out: the laws of distributions and a published rate, which need no kernel, and how work is split
# between threads, which no level changes; the digest has long tensors for that.
[ $# -gt 0 ] || set -- test --locked -p gradwire-core --lib --test golden --test hostile --test digest \
    -- --skip fit::tests --skip bytes_and_memory_agree --skip adacomp_reaches_its_published_rates
exec cargo "$1" --target $target --target-dir "${CARGO_TARGET_DIR:-target}/neon" "${@:2}"
