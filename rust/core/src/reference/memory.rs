//! Memories by their definitions, an element at a time and in float64.

/// What a memory keeps of a number: of those below the smallest normal one a positive zero.
pub fn kept(value: f32) -> f32 {
    if value.is_subnormal() || value == 0.0 { 0.0 } else { value }
}

/// `ScaleCom`'s low-pass filter.
#[derive(Debug, Clone)]
pub struct LowPass {
    beta: f64,
    /// One value an element.
    pub memory: Vec<f64>,
}

impl LowPass {
    /// The memory of a tensor of `len` elements before the first step.
    pub fn new(beta: f64, len: usize) -> Self {
        Self { beta, memory: vec![0.0; len] }
    }

    /// One step: `sent` has zeros where nothing was.
    pub fn step(&mut self, gradient: &[f32], sent: &[f32]) {
        for ((m, &g), &s) in self.memory.iter_mut().zip(gradient).zip(sent) {
            let p = *m + f64::from(g);
            *m = (1.0 - self.beta) * *m + self.beta * (p - f64::from(s));
        }
    }
}

/// DGC's momentum correction.
#[derive(Debug, Clone)]
pub struct MomentumCorrection {
    /// The factor of the momentum.
    pub factor: f64,
    /// Nesterov's momentum.
    pub nesterov: bool,
    /// Momentum factor masking.
    pub masking: bool,
    /// The largest norm of a gradient.
    pub clip: Option<f64>,
    /// One value an element.
    pub momentum: Vec<f64>,
    /// One value an element.
    pub velocity: Vec<f64>,
}

impl MomentumCorrection {
    /// One step, of which `sent` (zeros elsewhere) went at these positions.
    pub fn step(&mut self, gradient: &[f32], positions: &[u32], sent: &[f32]) {
        let norm = gradient.iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>().sqrt();
        let scale = self.clip.map_or(1.0, |clip| if norm > clip { clip / norm } else { 1.0 });
        for (i, &g) in gradient.iter().enumerate() {
            let g = scale * f64::from(g);
            if self.nesterov {
                self.momentum[i] = self.factor * (self.momentum[i] + g);
                self.velocity[i] += self.momentum[i] + g;
            } else {
                self.momentum[i] = self.factor * self.momentum[i] + g;
                self.velocity[i] += self.momentum[i];
            }
        }
        for &i in positions {
            let i = i as usize;
            self.velocity[i] -= f64::from(sent[i]);
            if self.masking {
                self.momentum[i] = 0.0;
            }
        }
    }
}

/// Adam without a first moment, of which steps are sent.
#[derive(Debug, Clone)]
pub struct AdamCorrection {
    /// The decay of the second moment.
    pub beta2: f64,
    /// What is added to its root.
    pub eps: f64,
    /// `beta2` to the power of the steps so far.
    pub unseen: f64,
    /// One value an element.
    pub second_moment: Vec<f64>,
    /// One value an element.
    pub residual: Vec<f64>,
}

impl AdamCorrection {
    /// The memory of a tensor of `len` elements before the first step.
    pub fn new(beta2: f64, eps: f64, len: usize) -> Self {
        let zeros = vec![0.0; len];
        Self { beta2, eps, unseen: 1.0, second_moment: zeros.clone(), residual: zeros }
    }

    /// One step at a learning rate: `sent` has zeros where nothing was. What Adam would have moved by.
    pub fn step(&mut self, gradient: &[f32], rate: f64, sent: &[f32]) -> Vec<f64> {
        self.unseen *= self.beta2;
        let mut moved = Vec::new();
        for (i, &g) in gradient.iter().enumerate() {
            let (g, v) = (f64::from(g), &mut self.second_moment[i]);
            *v = self.beta2 * *v + (1.0 - self.beta2) * g * g;
            let step = rate * g / ((*v / (1.0 - self.unseen)).sqrt() + self.eps);
            self.residual[i] += step - f64::from(sent[i]);
            moved.push(step);
        }
        moved
    }
}

/// EF21 on a momentum: an estimate that receivers follow.
#[derive(Debug, Clone)]
pub struct Estimate {
    /// The factor of the momentum.
    pub factor: f64,
    /// Nesterov's momentum.
    pub nesterov: bool,
    /// One value an element.
    pub momentum: Vec<f64>,
    /// One value an element.
    pub estimate: Vec<f64>,
}

impl Estimate {
    /// The memory of a tensor of `len` elements before the first step.
    pub fn new(factor: f64, nesterov: bool, len: usize) -> Self {
        Self { factor, nesterov, momentum: vec![0.0; len], estimate: vec![0.0; len] }
    }

    /// What entries are selected from with this gradient.
    pub fn changes(&mut self, gradient: &[f32]) -> Vec<f64> {
        let (keep, take) = (self.factor, 1.0 - self.factor);
        let entries = self.momentum.iter_mut().zip(gradient).zip(&self.estimate);
        entries
            .map(|((m, &g), &h)| {
                *m = keep * *m + take * f64::from(g);
                let target = if self.nesterov { keep * *m + take * f64::from(g) } else { *m };
                target - h
            })
            .collect()
    }

    /// Takes in what was sent, with zeros where nothing was.
    pub fn sent(&mut self, sent: &[f32]) {
        self.estimate.iter_mut().zip(sent).for_each(|(h, &sent)| *h += f64::from(sent));
    }
}
