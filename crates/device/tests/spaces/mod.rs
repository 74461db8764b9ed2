//! Two network namespaces joined by a veth pair, for tests.
#![allow(dead_code, clippy::print_stdout)]

use std::cell::Cell;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The properties of the pair.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub mtu: usize,
    /// Addresses are on a VLAN with this tag.
    pub vlan: Option<u16>,
    /// Permanent neighbour entries from the start.
    pub acquainted: bool,
    /// Queues of each end; by default as the system chooses.
    pub queues: Option<u32>,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { mtu: 1_500, vlan: None, acquainted: true, queues: None }
    }
}

/// Two namespaces joined by a veth pair; removed when dropped, also after a panic.
pub struct Spaces {
    pub names: [String; 2],
    number: u32,
    files: [File; 2],
    shape: Shape,
}

pub fn run(program: &str, args: &str) -> Result<String, String> {
    let ran = Command::new(program)
        .args(args.split_whitespace())
        .output()
        .map_err(|e| format!("{program}: {e}"))?;
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    if ran.status.success() {
        Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
    } else {
        Err(format!("{program} {args}: {said}"))
    }
}

pub fn ip(args: &str) -> Result<String, String> {
    run("ip", args)
}

/// Removes namespaces when dropped.
struct Names([String; 2]);

impl Drop for Names {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// The hardware addresses of the two ends.
pub const MACS: [&str; 2] = ["02:00:00:54:4c:01", "02:00:00:54:4c:02"];

impl Spaces {
    pub fn new(shape: Shape) -> Result<Spaces, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let names = ["a", "b"].map(|side| format!("tlx{side}-{}-{number}", std::process::id()));
        let guard = Names(names.clone());
        let [a, b] = &names;
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        for name in [a, b] {
            let _ = run(
                "ip",
                &format!(
                    "netns exec {name} sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0"
                ),
            );
            ip(&format!("-n {name} link set lo up"))?;
        }
        join(&names, shape)?;
        let files = names.clone().map(|name| File::open(format!("/var/run/netns/{name}")));
        let [Ok(first), Ok(second)] = files else { return Err("no /var/run/netns".into()) };
        std::mem::forget(guard);
        let spaces = Spaces { names, number, files: [first, second], shape };
        if shape.acquainted {
            spaces.acquaint()?;
        }
        Ok(spaces)
    }

    /// Removes the pair, and creates it again.
    pub fn rejoin(&self) -> Result<(), String> {
        ip(&format!("-n {} link del v0", self.names[0]))?;
        self.join()
    }

    /// Creates the pair again.
    pub fn join(&self) -> Result<(), String> {
        join(&self.names, self.shape)?;
        if self.shape.acquainted { self.acquaint() } else { Ok(()) }
    }

    /// Adds permanent neighbour entries on both sides.
    pub fn acquaint(&self) -> Result<(), String> {
        for (side, name) in self.names.iter().enumerate() {
            let (other, mac) = (2 - side, MACS[1 - side]);
            for to in [format!("10.211.9.{other}"), format!("fd00:211:9::{other}")] {
                let upper = upper(self.shape);
                ip(&format!("-n {name} neigh replace {to} lladdr {mac} dev {upper} nud permanent"))?;
            }
        }
        Ok(())
    }

    pub fn addr(&self, side: usize, v6: bool) -> IpAddr {
        let host = side + 1;
        let text = if v6 { format!("fd00:211:9::{host}") } else { format!("10.211.9.{host}") };
        text.parse().unwrap()
    }

    /// Moves this thread to a side, unless it is there already.
    pub fn enter(&self, side: usize) {
        thread_local!(static HERE: Cell<Option<(u32, usize)>> = const { Cell::new(None) });
        if HERE.replace(Some((self.number, side))) == Some((self.number, side)) {
            return;
        }
        move_into_link_name_space(self.files[side].as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }

    /// Whether no program is attached on either side. Waits for children that were being forked to close
    /// inherited descriptors.
    pub fn is_left_alone(&self) -> bool {
        (0..200).any(|_| {
            let alone = !self.has_program(0) && !self.has_program(1);
            if !alone {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            alone
        })
    }

    /// Whether `ip` shows an XDP program in a namespace.
    pub fn has_program(&self, side: usize) -> bool {
        ip(&format!("-n {} link show v0", self.names[side])).unwrap().contains("xdp")
    }
}

/// Joins two namespaces by a veth pair, with addresses.
fn join(names: &[String; 2], shape: Shape) -> Result<(), String> {
    let [a, b] = names;
    let mtu = shape.mtu;
    let queues = shape.queues.map_or(String::new(), |n| format!("numtxqueues {n} numrxqueues {n}"));
    ip(&format!(
        "-n {a} link add v0 mtu {mtu} address {} {queues} type veth peer name v0 mtu {mtu} address {} {queues} netns {b}",
        MACS[0], MACS[1]
    ))?;
    for (side, name) in names.iter().enumerate() {
        ip(&format!("-n {name} link set v0 up"))?;
        if let Some(vlan) = shape.vlan {
            ip(&format!("-n {name} link add link v0 name v0.{vlan} type vlan id {vlan}"))?;
            ip(&format!("-n {name} link set v0.{vlan} up"))?;
        }
        let host = side + 1;
        let upper = upper(shape);
        ip(&format!("-n {name} addr add 10.211.9.{host}/24 dev {upper}"))?;
        ip(&format!("-n {name} addr add fd00:211:9::{host}/64 dev {upper} nodad"))?;
    }
    Ok(())
}

pub fn upper(shape: Shape) -> String {
    shape.vlan.map_or("v0".to_owned(), |vlan| format!("v0.{vlan}"))
}

impl Drop for Spaces {
    fn drop(&mut self) {
        drop(Names(self.names.clone()));
    }
}

/// Creates the namespaces, unless this process or the kernel lacks what they need. Any other failure is one
/// of the test.
#[track_caller]
pub fn spaces(test: &str, shape: Shape) -> Option<Arc<Spaces>> {
    if let Some(why) = tautline_skips::lacks_namespaces() {
        tautline_skips::skip(test, why);
        return None;
    }
    match Spaces::new(shape) {
        Ok(spaces) => Some(Arc::new(spaces)),
        Err(why) if shape.vlan.is_some() && why.contains("Unknown device type") => {
            tautline_skips::skip(test, "the kernel has no VLAN interfaces (CONFIG_VLAN_8021Q)");
            None
        }
        Err(why) => panic!("{why}"),
    }
}
