//! UCX's own `ucx_perftest`, which is started for each figure. It resends an untouched buffer, and is
//! measured to show that; a team over UCX shows what UCX does for a user.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::child::{Background, run_unless};
use super::tools::find_tool;
use super::{Figures, Order, Placement, Test};

const TEST_TIME: Duration = Duration::from_secs(15);
/// The server needs a moment to listen, and gives no sign to wait for.
const TRIES: u32 = 20;

pub(super) fn measure(
    placement: &Placement,
    order: &Order,
    stop: &mut dyn FnMut() -> bool,
) -> Result<[Figures; 2], String> {
    let tool = find_tool("ucx_perftest").ok_or("ucx_perftest is not installed")?;
    let (test, outstanding) = match order.test {
        Test::PingPong => ("tag_lat", None),
        Test::Stream { window } => ("tag_bw", window),
        Test::Paced { .. } => return Err("ucx_perftest has no paced test".to_owned()),
    };
    let port = free_port()?;
    let start = |side: usize| {
        let mut command = Command::new(&tool);
        command.env("UCX_TLS", "sm,self");
        command.args(["-p", &port, "-c", &placement.cores[side].to_string()]);
        command
    };
    let _server = Background::start(&mut start(1), Stdio::null())?;
    let mut last = String::new();
    for _ in 0..TRIES {
        std::thread::sleep(Duration::from_millis(25));
        let mut client = start(0);
        let warm_up = (order.count / 10).clamp(2, 500);
        client.args(["127.0.0.1", "-t", test, "-s", &order.bytes.to_string()]);
        client.args(["-n", &order.count.to_string(), "-w", &warm_up.to_string()]);
        if let Some(window) = outstanding {
            client.args(["-O", &window.to_string()]);
        }
        match run_unless(&mut client, TEST_TIME, stop) {
            Ok(text) => {
                let figures = parse(&text, order).ok_or_else(|| "no figure in its output".to_owned())?;
                return Ok([figures, Figures::default()].map(|figures| figures.with(order)));
            }
            Err(reason) => last = reason,
        }
        if stop() {
            break;
        }
    }
    Err(last)
}

/// Columns after "Final:": iterations, median, mean and overall µs; average and overall MB/s; average and
/// overall messages per second.
fn parse(text: &str, order: &Order) -> Option<Figures> {
    let (_, rest) = text.split_once("Final:")?;
    let columns: Vec<f64> = rest.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let &[_, median_us, mean_us, _, _, _, _, rate] = columns.get(..8)? else { return None };
    let elapsed_ns = (order.count as f64 / rate.max(1.0) * 1e9) as u64;
    // Its latency is one way already; ours are round trips.
    let round_trip_ns = |us: f64| us * 2e3;
    let (median_ns, mean_ns) = (round_trip_ns(median_us), round_trip_ns(mean_us));
    Some(Figures { median_ns, mean_ns, elapsed_ns, ..Figures::default() })
}

fn free_port() -> Result<String, String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|e| e.to_string())?;
    listener.local_addr().map(|address| address.port().to_string()).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_its_output() {
        let text = "+---+\nFinal:  20000  0.445  1.261  1.261  6.05  6.05  792848  1000000\n";
        let order = Order { test: Test::PingPong, bytes: 8, count: 1000 };
        let figures = parse(text, &order).unwrap();
        assert_eq!((figures.median_ns, figures.mean_ns, figures.elapsed_ns), (890.0, 2522.0, 1_000_000));
        assert_eq!(parse("Final: 20000 0.445", &order), None);
        assert_eq!(parse("", &order), None);
    }
}
