use super::{Controller, GIVE_UP, Mode, WINDOW};
use crate::fit::Distribution::{Exponential, Gamma, GeneralizedPareto};

fn adaptive(delta: f64) -> Controller {
    Controller::new(Mode::Adaptive, GeneralizedPareto, delta)
}

/// What the next plan aims at, over the target.
fn aim(controller: &Controller) -> f64 {
    controller.plan(1000, 1_000_000, 0.25).expected(1_000_000, 99) / 1000.0
}

fn feed(controller: &mut Controller, ratio: f64, times: u32) {
    (0..times).for_each(|_| controller.observe(ratio));
}

#[test]
fn the_published_rule_moves_once_a_window() {
    let mut c = Controller::new(Mode::Paper, Exponential, 0.001);
    assert_eq!(c.stages(), 1);
    feed(&mut c, 0.5, WINDOW - 1);
    assert_eq!(c.stages(), 1);
    feed(&mut c, 0.5, 1);
    assert_eq!(c.stages(), 2);
    // The mean decides, and within the tolerance nothing moves.
    for ratio in [0.0, 2.0, 1.0, 0.9, 1.1] {
        c.observe(ratio);
    }
    assert_eq!(c.stages(), 2);
    feed(&mut c, 0.1, 40 * WINDOW);
    assert_eq!(c.stages(), 10);
    feed(&mut c, 1.5, WINDOW);
    assert_eq!(c.stages(), 9);
}

#[test]
fn fixed_stages_stay() {
    for (given, stages) in [(0, 1), (1, 1), (3, 3), (40, 40)] {
        let mut c = Controller::new(Mode::Fixed(given), Gamma, 0.01);
        feed(&mut c, 0.1, 50);
        feed(&mut c, 9.0, 50);
        assert_eq!(c.stages(), stages);
    }
}

#[test]
fn a_steady_factor_is_taken_out() {
    for factor in [0.4, 0.7, 0.95, 1.1, 1.4, 2.5] {
        let mut c = adaptive(0.001);
        for step in 0..40 {
            let ratio = factor * aim(&c);
            assert!(step < 25 || (ratio - 1.0).abs() < 0.01, "{factor} {step}: {ratio}");
            c.observe(ratio);
        }
    }
}

#[test]
fn the_aim_settles_whatever_the_slope_of_the_answer() {
    // Survivors may change less or more than the share asked for.
    for slope in [0.5, 1.0, 2.0, 3.0] {
        let mut c = adaptive(0.001);
        for step in 0..120 {
            let ratio = 1.3 * libm::pow(aim(&c), slope);
            assert!(step < 80 || (ratio - 1.0).abs() < 0.05, "{slope} {step}: {ratio}");
            c.observe(ratio);
        }
    }
}

#[test]
fn one_wild_step_moves_little() {
    for wild in [0.0, 1e-300, 1e300, f64::INFINITY] {
        let mut c = adaptive(0.001);
        feed(&mut c, 1.0, 10);
        c.observe(wild);
        assert!((0.88..1.14).contains(&aim(&c)), "{wild}: {}", aim(&c));
        assert_eq!(c.stages(), adaptive(0.001).stages());
    }
    let mut c = adaptive(0.001);
    c.observe(f64::NAN);
    assert_eq!(c, adaptive(0.001));
}

#[test]
fn misses_in_a_row_add_stages_up_to_a_bound() {
    let mut c = adaptive(0.001);
    let start = c.stages();
    // Alternating, so that the aim stays near the target.
    for ratio in [1.4, 0.75, 1.0, 1.4, 0.75, 1.0] {
        c.observe(ratio);
    }
    assert_eq!(c.stages(), start);
    for ratio in [1.4, 0.75, 1.4] {
        c.observe(ratio);
    }
    assert_eq!(c.stages(), start + 1);
    feed(&mut c, 0.0, 1000);
    assert_eq!(c.stages(), start + 4);
    assert!(aim(&c) < 5.0);
}

#[test]
fn an_aim_far_from_the_target_adds_a_stage_and_comes_back() {
    let mut c = adaptive(0.001);
    let start = c.stages();
    // All in the band, all too few.
    feed(&mut c, 0.9, 9);
    assert_eq!(c.stages(), start);
    assert!(aim(&c) > 1.2);
    feed(&mut c, 0.9, 1);
    assert_eq!(c.stages(), start + 1);
    assert!(aim(&c) < 1.15);
}

#[test]
fn misses_that_outnumber_hits_are_answered_by_rests_of_growing_length() {
    let mut c = adaptive(0.001);
    let mut rests = Vec::new();
    for _ in 0..200 {
        c.judge(false);
        let mut rest = 0;
        while c.rests() {
            c.rested();
            rest += 1;
        }
        rests.push(rest);
    }
    assert_eq!(rests[..GIVE_UP as usize - 1], [0; GIVE_UP as usize - 1]);
    let shown = &rests[GIVE_UP as usize - 1..];
    assert_eq!(shown[..6], [64, 128, 256, 512, 1024, 1024]);
    assert!(shown[6..].iter().all(|&rest| rest == 1024));
    // Good fits are taken up again at once; only after as many as it missed is all forgotten.
    for _ in 0..GIVE_UP - 2 {
        c.judge(true);
    }
    assert_ne!(c, adaptive(0.001));
    c.judge(true);
    assert_eq!(c, adaptive(0.001));
}

#[test]
fn misses_now_and_then_do_not_bring_a_rest() {
    let mut c = adaptive(0.0001);
    for step in 0..100_000 {
        // 15 of 33, in a row.
        c.judge(step % 33 >= 15);
        assert!(!c.rests(), "{step}");
    }
}

#[test]
fn it_starts_with_what_the_law_can_be_trusted_to_reach() {
    let stages = |dist| {
        [0.5, 0.1, 0.01, 1e-3, 1e-4].map(|d| Controller::new(Mode::Adaptive, dist, d).stages())
    };
    assert_eq!(stages(Exponential), [3, 3, 4, 5, 6]);
    assert_eq!(stages(Gamma), [3, 3, 4, 4, 5]);
    assert_eq!(stages(GeneralizedPareto), [3, 3, 4, 4, 5]);
}

#[test]
fn scalars_restore_a_controller() {
    for mode in [Mode::Fixed(3), Mode::Paper, Mode::Adaptive, Mode::Tracking] {
        let mut c = Controller::new(mode, Exponential, 0.001);
        for step in 0..37 {
            c.observe([0.3, 0.4, 1.6, 0.2][step % 4]);
            c.judge(false);
        }
        c.rested();
        let saved: Vec<(String, f64)> =
            c.scalars().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let mut fresh = Controller::new(mode, Exponential, 0.001);
        fresh.load_scalars(&saved).unwrap();
        assert_eq!(fresh, c);

        for at in 0..saved.len() {
            let without: Vec<_> = saved.iter().filter(|s| *s != &saved[at]).cloned().collect();
            let mut wrong = saved.clone();
            wrong[at].1 = f64::NAN;
            for bad in [without, wrong] {
                assert!(fresh.load_scalars(&bad).is_err());
                assert_eq!(fresh, c);
            }
        }
        for (name, value) in [
            ("stages", 0.0),
            ("stages", 1.5),
            ("stages", 99.0),
            ("seen", 5.0),
            ("misses", 16.0),
            ("rest", 1025.0),
            ("rests", 5.0),
        ] {
            let bad: Vec<_> = saved
                .iter()
                .map(|(n, v)| (n.clone(), if n == name { value } else { *v }))
                .collect();
            assert!(fresh.load_scalars(&bad).is_err(), "{name} {value}");
        }
    }
}
