//! Synthetic gradients, the same on every machine and in every run.
//!
//! Not a test of its own: `tests/achieved_ratio.rs` and `examples/achieved_ratio.rs` share it.

/// Uniform numbers in (0, 1): splitmix64.
#[derive(Debug, Clone)]
pub struct Rng(pub u64);

impl Rng {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn uniform(&mut self) -> f64 {
        libm::ldexp((self.bits() >> 11) as f64, -53) + libm::ldexp(1.0, -54)
    }

    fn exponential(&mut self) -> f64 {
        -libm::log(self.uniform())
    }

    /// Standard normal (Box-Muller, one of the pair).
    fn normal(&mut self) -> f64 {
        (2.0 * self.exponential()).sqrt() * libm::cos(std::f64::consts::TAU * self.uniform())
    }

    /// The square of a standard normal.
    fn square(&mut self) -> f64 {
        let normal = self.normal();
        normal * normal
    }

    /// Student's t of any degrees of freedom (Bailey 1994, the polar method).
    fn student(&mut self, freedom: f64) -> f64 {
        loop {
            let (u, v) = (2.0 * self.uniform() - 1.0, 2.0 * self.uniform() - 1.0);
            let w = u * u + v * v;
            if w <= 1.0 {
                return u * (freedom * libm::expm1(-2.0 / freedom * libm::log(w)) / w).sqrt();
            }
        }
    }

    fn sign(&mut self) -> f64 {
        if self.bits() & 1 == 0 { 1.0 } else { -1.0 }
    }
}

/// The law that each entry of a gradient follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Law {
    Laplace,
    Gaussian,
    /// Gamma magnitudes of shape 1/2.
    DoubleGamma,
    /// Generalized Pareto magnitudes of shape 0.2.
    DoublePareto,
    /// Student's t with 3 degrees of freedom: infinite fourth moment.
    StudentT,
    /// The product of two normals.
    Product,
    /// A normal whose scale is log-normal (sigma 1.5), entry by entry.
    ScaleMix,
    /// Laplace, half of the entries exactly zero.
    HalfZeros,
    /// Normal entries in 40 layers of one log-normal scale each (sigma 1.5).
    Layers,
    /// Student's t with 2.2 degrees of freedom: the variance itself is nearly infinite.
    HeavyT,
    /// One entry in 1500 normal, the others a ten-thousandth of that: at a ratio of 0.001 the target
    /// lies just inside a gap that no fitted tail knows of.
    SpikeAndSlab,
}

impl Law {
    pub const ALL: [Self; 9] = [
        Self::Laplace,
        Self::Gaussian,
        Self::DoubleGamma,
        Self::DoublePareto,
        Self::StudentT,
        Self::Product,
        Self::ScaleMix,
        Self::HalfZeros,
        Self::Layers,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Laplace => "Laplace",
            Self::Gaussian => "Gaussian",
            Self::DoubleGamma => "double gamma 0.5",
            Self::DoublePareto => "double GP 0.2",
            Self::StudentT => "Student t(3)",
            Self::Product => "Gauss x Gauss",
            Self::ScaleMix => "scale mix",
            Self::HalfZeros => "half zeros",
            Self::Layers => "layers",
            Self::HeavyT => "Student t(2.2)",
            Self::SpikeAndSlab => "spike and slab",
        }
    }

    /// One entry.
    pub fn draw(self, rng: &mut Rng) -> f64 {
        match self {
            Self::HalfZeros if rng.bits() & 1 == 0 => 0.0,
            Self::Laplace | Self::HalfZeros => rng.sign() * rng.exponential(),
            Self::Gaussian | Self::Layers => rng.normal(),
            Self::DoubleGamma => rng.sign() * 0.5 * rng.square(),
            Self::DoublePareto => rng.sign() * libm::expm1(0.2 * rng.exponential()) / 0.2,
            Self::StudentT => {
                let chi: f64 = (0..3).map(|_| rng.square()).sum();
                rng.normal() / (chi / 3.0).sqrt()
            }
            Self::HeavyT => rng.student(2.2),
            Self::SpikeAndSlab if rng.bits().is_multiple_of(1500) => rng.normal(),
            Self::SpikeAndSlab => 1e-4 * rng.normal(),
            Self::Product => rng.normal() * rng.normal(),
            Self::ScaleMix => rng.normal() * libm::exp(1.5 * rng.normal()),
        }
    }
}

/// Gradients step by step, as one of the cases below describes them.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    pub law: Law,
    /// Whether what is not sent is added to the next step.
    pub feedback: bool,
    /// Steps during which the gradient is 1000 times as large.
    pub jump: Option<(usize, usize)>,
    /// Another law, from a step on.
    pub then: Option<(usize, Law)>,
}

impl Case {
    /// Every law by itself, without feedback.
    pub fn stationary() -> Vec<Self> {
        Law::ALL
            .into_iter()
            .map(|law| Self { name: law.name(), law, feedback: false, jump: None, then: None })
            .collect()
    }

    /// Laws on which fits miss often or always.
    pub fn hard() -> Vec<Self> {
        let case = |name, law, feedback| Self { name, law, feedback, jump: None, then: None };
        vec![
            case("Student t(2.2)", Law::HeavyT, false),
            case("Student t(2.2), feedback", Law::HeavyT, true),
            case("spike and slab", Law::SpikeAndSlab, false),
            case("spike and slab, feedback", Law::SpikeAndSlab, true),
        ]
    }

    /// Feedback, jumps of scale and changes of law, where `steps` are run.
    pub fn moving(steps: usize) -> Vec<Self> {
        let jump = Some((steps * 7 / 10, steps * 8 / 10));
        let then = Some((steps * 7 / 10, Law::ScaleMix));
        let case = |name, law| Self { name, law, feedback: true, jump: None, then: None };
        vec![
            case("Laplace, feedback", Law::Laplace),
            case("scale mix, feedback", Law::ScaleMix),
            case("layers, feedback", Law::Layers),
            Self { jump, ..case("Laplace, feedback, scale x 1000 and back", Law::Laplace) },
            Self { jump, ..case("layers, feedback, scale x 1000 and back", Law::Layers) },
            Self {
                jump,
                feedback: false,
                ..case("Student t(3), scale x 1000 and back", Law::StudentT)
            },
            Self { then, feedback: false, ..case("Gaussian, then scale mix", Law::Gaussian) },
        ]
    }
}

/// An endless supply of gradients of one case.
///
/// Each is a window, at a random place, of a pool that is drawn once and is four times as long.
#[derive(Debug, Clone)]
pub struct Source {
    case: Case,
    pool: Vec<f32>,
    later: Vec<f32>,
    /// One a layer; 1 throughout for laws without layers.
    scales: Vec<f32>,
    n: usize,
    step: usize,
    rng: Rng,
}

impl Source {
    pub fn new(case: Case, n: usize) -> Self {
        let mut rng = Rng(7);
        let pool = (0..4 * n).map(|_| case.law.draw(&mut rng) as f32).collect();
        let later = case
            .then
            .map_or(Vec::new(), |(_, law)| (0..4 * n).map(|_| law.draw(&mut rng) as f32).collect());
        let layers = if case.law == Law::Layers { 40 } else { 1 };
        let sigma = if layers == 1 { 0.0 } else { 1.5 };
        let scales = (0..layers).map(|_| libm::exp(sigma * rng.normal()) as f32).collect();
        Self { case, pool, later, scales, n, step: 0, rng }
    }

    /// The gradient of the next step.
    pub fn next_into(&mut self, out: &mut Vec<f32>) {
        let during = |(from, to): (usize, usize)| (from..to).contains(&self.step);
        let scale = if self.case.jump.is_some_and(during) { 1000.0 } else { 1.0 };
        let late = self.case.then.is_some_and(|(from, _)| self.step >= from);
        let pool = if late { &self.later } else { &self.pool };
        let start = self.rng.bits() as usize % (pool.len() - self.n);
        let window = &pool[start..start + self.n];
        let layer = self.n.div_ceil(self.scales.len());
        out.clear();
        for (part, s) in window.chunks(layer).zip(&self.scales) {
            out.extend(part.iter().map(|x| x * (s * scale)));
        }
        self.step += 1;
    }
}
