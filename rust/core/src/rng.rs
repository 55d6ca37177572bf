//! Random numbers without a state: each is a function of a key and a position.
//!
//! With a sequential generator, a frame would depend on the order in which entries are visited, and
//! so on threads and vector widths. Here the random number of an entry depends only on its purpose and
//! position: every SIMD level, every number of threads and a run resumed from a checkpoint draw the
//! same numbers.
//!
//! Counter-based generators were proposed by Salmon, Moraes, Dror and Shaw, "Parallel Random
//! Numbers: As Easy as 1, 2, 3", SC 2011. The function used here is lighter than theirs, and not
//! cryptographic: two rounds of a 32-bit finalizer, each followed by half of the key.

/// The key of a sequence of random numbers: seed, tensor, step and stream, mixed to 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(u64);

impl Key {
    /// The key of a tensor's numbers in one step.
    ///
    /// `tensor` distinguishes tensors that share a seed ([`tensor_id`]); `stream` distinguishes
    /// ranks, or others that must draw different numbers.
    pub fn new(seed: u64, tensor: u64, step: u64, stream: u64) -> Self {
        let key = [tensor, step, stream].iter().fold(scramble(seed), |key, &word| {
            // Scrambled before it joins: small numbers must not cancel each other.
            scramble(key ^ scramble(word.wrapping_add(GOLDEN)))
        });
        Self(key)
    }

    /// Makes a key of 64 bits.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits of the key, with which a receiver can draw the same numbers.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The random number at a position: 32 uniform bits.
    #[inline(always)]
    pub fn bits(self, position: u32) -> u32 {
        let (low, high) = (self.0 as u32, (self.0 >> 32) as u32);
        finalize(finalize(position.wrapping_add(low)).wrapping_add(high))
    }

    /// The random number at a position as a multiple of 2^-24 in [0, 1), all equally likely.
    #[inline(always)]
    pub fn unit(self, position: u32) -> f32 {
        (self.bits(position) >> 8) as f32 * CELL
    }

    /// Whether the number at a position leaves open what it is compared with: a number of its cell,
    /// which begins at `unit` and has a width of [`CELL`]. That is one draw in 2^24.
    #[inline(always)]
    pub(crate) fn is_open(unit: f32, probability: f32) -> bool {
        unit < probability && probability < unit + CELL
    }

    /// True with this probability, in [0, 1], to its last bit.
    ///
    /// The same as `unit(position) < probability`, but where that is open: then the numbers at the
    /// same position of further keys decide. A comparison alone would be true for one draw in 2^24
    /// however small the probability is.
    pub(crate) fn chance(self, position: u32, mut probability: f32) -> bool {
        let mut key = self;
        loop {
            let unit = key.unit(position);
            if !Self::is_open(unit, probability) {
                return unit < probability;
            }
            // What is left of the cell, exactly: both are multiples of the last bit of one of them.
            probability = (probability - unit) / CELL;
            key = key.further();
        }
    }

    /// The key of the numbers that decide what those of this one leave open.
    pub(crate) fn further(self) -> Self {
        Self(scramble(self.0.wrapping_add(GOLDEN)))
    }
}

/// The distance of neighbouring numbers of [`Key::unit`].
const CELL: f32 = 1.0 / 16_777_216.0;

/// An identifier for the name of a tensor: FNV-1a with 64 bits. Zero for no name.
pub fn tensor_id(name: &str) -> u64 {
    if name.is_empty() {
        return 0;
    }
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014: the
/// finalizer of `SplitMix64`.
fn scramble(word: u64) -> u64 {
    let x = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A bijection of 32 bits in which every input bit flips every output bit half of the time, nearly.
#[inline(always)]
fn finalize(x: u32) -> u32 {
    let x = (x ^ (x >> 16)).wrapping_mul(0x21F0_AAAD);
    let x = (x ^ (x >> 15)).wrapping_mul(0x735A_2D97);
    x ^ (x >> 15)
}

#[cfg(test)]
pub(crate) mod testing {
    use super::Key;

    /// The position at which a key has this number: there is one, since a draw is a bijection.
    pub(crate) fn position_of(key: Key, bits: u32) -> u32 {
        let (low, high) = (key.to_bits() as u32, (key.to_bits() >> 32) as u32);
        let position = inverse(inverse(bits).wrapping_sub(high)).wrapping_sub(low);
        assert_eq!(key.bits(position), bits);
        position
    }

    /// Undoes `finalize`, a step at a time.
    fn inverse(x: u32) -> u32 {
        let x = (x ^ (x >> 15) ^ (x >> 30)).wrapping_mul(reciprocal(0x735A_2D97));
        let x = (x ^ (x >> 15) ^ (x >> 30)).wrapping_mul(reciprocal(0x21F0_AAAD));
        x ^ (x >> 16)
    }

    /// One over an odd number, modulo 2^32: each round doubles the bits that are right.
    fn reciprocal(odd: u32) -> u32 {
        (0..5).fold(odd, |x, _| x.wrapping_mul(2_u32.wrapping_sub(odd.wrapping_mul(x))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_never_change() {
        // Written into frames (seeded positions): these are part of the format.
        let key = Key::new(7, tensor_id("layer.weight"), 3, 1);
        assert_eq!(key, Key::from_bits(key.to_bits()));
        assert_eq!(key.to_bits(), KEY);
        assert_eq!([0, 1, u32::MAX].map(|at| key.bits(at)), BITS);
    }

    // From the definition, computed apart from this code.
    const KEY: u64 = 0x627D_FA61_F006_B920;
    const BITS: [u32; 3] = [0xEE0C_BA06, 0xAC67_B4AE, 0xB999_FA21];

    /// A probability of a few cells, or far less than one, has to be met by the one draw in many that
    /// it takes: these are looked up, by going backwards through the definition.
    #[test]
    fn a_chance_is_true_as_often_as_it_should_be_however_small_it_is() {
        for (cell, part) in [(0, 0.7), (0, 2e-3), (0, 0.5 + 1e-7), (1, 0.25), (5, 1.0), (5, 0.0)] {
            let probability = (f64::from(cell) + part) as f32 * CELL;
            let (mut ups, mut draws) = (0, 0);
            for seed in 0..400 {
                let key = Key::new(seed, 1, 2, 3);
                for low in 0..256 {
                    let position = testing::position_of(key, cell << 8 | low);
                    assert_eq!(key.unit(position), cell as f32 * CELL);
                    ups += u64::from(key.chance(position, probability));
                    draws += 1;
                    // Draws of the cells beside it are no matter of chance.
                    let next = testing::position_of(key, (cell + 1) << 8 | low);
                    assert!(part == 1.0 || !key.chance(next, probability));
                }
            }
            let (n, part) = (f64::from(draws), f64::from(probability / CELL) - f64::from(cell));
            let spread = 4.5 * libm::sqrt(n * part * (1.0 - part));
            assert!((ups as f64 - n * part).abs() <= spread, "{cell} {part}: {ups} of {draws}");
        }
    }

    #[test]
    fn a_chance_ends_for_every_float32() {
        let key = Key::new(0, 0, 0, 9);
        let position = testing::position_of(key, 0);
        for probability in [f32::from_bits(1), f32::MIN_POSITIVE, CELL.next_down(), 0.0, f32::NAN] {
            assert!(!key.chance(testing::position_of(key, u32::MAX), probability));
            // Whatever it comes to.
            key.chance(position, probability);
        }
        assert!(key.chance(testing::position_of(key, u32::MAX), 1.0));
    }
}
