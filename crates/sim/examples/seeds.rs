//! Runs seeds: `seeds FIRST COUNT [MESSAGES]`; a fourth argument `trace` prints a trace.
#![allow(clippy::print_stdout)]

use tautline_sim::{Options, Trace, replay, run_many};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, default: u64| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let options = Options { messages: number(3, 10_000), ..Options::default() };
    if args.get(4).is_some() {
        let trace = Trace::new(Some(Box::new(std::io::stdout())), None).unwrap();
        println!("{}", replay(number(1, 0), &options, trace));
        return;
    }
    let begun = std::time::Instant::now();
    let threads = std::env::var("THREADS").ok().and_then(|t| t.parse().ok()).unwrap_or(2);
    let sum = run_many(number(1, 0), number(2, 100), 0, threads, &options, |_| {});
    for failure in sum.failures.iter().take(5) {
        println!("{failure}");
    }
    let mut kinds = std::collections::BTreeMap::<String, Vec<u64>>::new();
    for failure in &sum.failures {
        let text = &failure.violations[0];
        let kind = text.split_whitespace().skip(1).take(3).collect::<Vec<_>>().join(" ");
        kinds.entry(kind).or_default().push(failure.seed);
    }
    for (kind, seeds) in kinds {
        println!("{:5} × {kind}: {:?}", seeds.len(), &seeds[..seeds.len().min(12)]);
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{} seeds, {} failed, different {:?}, {} messages, {} MB, {} frames, {} lost, {} deaths, {:.1} s, {:.0} messages/s",
        sum.seeds,
        sum.failures.len(),
        sum.different,
        sum.messages,
        sum.bytes / 1_000_000,
        sum.frames,
        sum.lost,
        sum.deaths,
        seconds,
        sum.messages as f64 / seconds
    );
}
