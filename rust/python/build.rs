//! Copies the examples to where maturin finds them for the wheel: see `include` in `pyproject.toml`.

use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let from = "../../examples";
    println!("cargo::rerun-if-changed={from}");
    let to = Path::new(&env::var_os("OUT_DIR").unwrap_or_default()).join("_examples");
    _ = fs::remove_dir_all(&to); // of an earlier build
    fs::create_dir(&to)?;
    for file in fs::read_dir(from)? {
        let file = file?;
        if file.file_type()?.is_file() {
            fs::copy(file.path(), to.join(file.file_name()))?;
        }
    }
    Ok(())
}
