//! Options of AF_XDP in a launcher or a job file: `xdp,framing=raw,mode=native,receive=busy-poll`. Each is
//! optional, and replaces what the program configures (J-5).

use std::fmt;
use std::str::FromStr;

use tautline_device::xdp::{Framing, Mode, Receive};

use crate::Config;

/// The options that were given; none leaves what the program configures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct XdpOptions {
    /// As [`Config::xdp_framing`].
    pub framing: Option<Framing>,
    /// As [`Config::xdp_mode`].
    pub mode: Option<Mode>,
    /// As [`Config::xdp_receive`].
    pub receive: Option<Receive>,
}

impl XdpOptions {
    /// No options, as `change` changes them.
    pub fn with(change: impl FnOnce(&mut XdpOptions)) -> XdpOptions {
        let mut options = XdpOptions::default();
        change(&mut options);
        options
    }

    /// Applies the options to a configuration.
    pub(crate) fn apply(self, config: &mut Config) {
        config.xdp_framing = self.framing.unwrap_or(config.xdp_framing);
        config.xdp_mode = self.mode.unwrap_or(config.xdp_mode);
        config.xdp_receive = self.receive.unwrap_or(config.xdp_receive);
    }
}

impl FromStr for XdpOptions {
    type Err = String;

    fn from_str(text: &str) -> Result<XdpOptions, String> {
        let mut options = XdpOptions::default();
        let mut seen = Vec::new();
        for part in text.split(',') {
            let (word, value) = part.split_once('=').unwrap_or((part, ""));
            if seen.contains(&word) {
                return Err(format!("\"{word}=\" is said twice of xdp; say it once"));
            }
            seen.push(word);
            match word {
                "framing" => options.framing = Some(value.parse()?),
                "mode" => options.mode = Some(value.parse()?),
                "receive" => options.receive = Some(value.parse()?),
                other => {
                    return Err(format!(
                        "unknown option \"{other}\" of xdp; use framing=, mode= or receive=, for example xdp,framing=raw,receive=busy-poll"
                    ));
                }
            }
        }
        Ok(options)
    }
}

impl fmt::Display for XdpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = [
            self.framing.map(|framing| format!("framing={}", framing.name())),
            self.mode.map(|mode| format!("mode={}", mode.name())),
            self.receive.map(|receive| format!("receive={}", receive.name())),
        ];
        f.write_str(&said.into_iter().flatten().collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceName;

    /// J-5: options of AF_XDP read back as written, and replace what the program configures.
    #[test]
    fn options_of_xdp() {
        for text in
            ["xdp", "xdp,framing=raw", "xdp,mode=native,receive=busy-poll", "xdp,framing=udp,mode=auto"]
        {
            let device: DeviceName = text.parse().unwrap();
            assert_eq!((device.to_string().as_str(), device.name()), (text, "xdp"));
        }
        let raw = XdpOptions::with(|options| options.framing = Some(Framing::Raw));
        assert_eq!("xdp,framing=raw".parse(), Ok(DeviceName::XdpWith(raw)));
        let mut config = Config { xdp_mode: Mode::Generic, ..Config::default() };
        config.ask_for("xdp,framing=raw,receive=busy-poll".parse().unwrap());
        assert_eq!(config.device, Some(DeviceName::Xdp));
        let all = (config.xdp_framing, config.xdp_mode, config.xdp_receive);
        assert_eq!(all, (Framing::Raw, Mode::Generic, Receive::BusyPoll));
        let settled = |own: Option<&str>, job: Option<&str>| {
            let read = |text: Option<&str>| text.map(|text| text.parse::<DeviceName>().unwrap());
            let mut config = Config { device: read(own), ..Config::default() };
            config.settle_device(read(job));
            (config.device, config.xdp_framing)
        };
        let raw = Some("xdp,framing=raw");
        assert_eq!(settled(None, raw), (Some(DeviceName::Xdp), Framing::Raw));
        assert_eq!(settled(Some("xdp"), raw), (Some(DeviceName::Xdp), Framing::Raw));
        assert_eq!(settled(raw, Some("shm")), (Some(DeviceName::Xdp), Framing::Raw));
        assert_eq!(settled(Some("udp"), raw), (Some(DeviceName::Udp), Framing::Udp));
        assert_eq!(settled(None, None), (None, Framing::Udp));
        for (text, word) in [
            ("xdp,", "framing="),
            ("xdp,speed=high", "speed"),
            ("xdp,framing=cooked", "cooked"),
            ("xdp,mode=native,mode=generic", "twice"),
            ("xdp,receive", "busy-poll"),
            ("udp,framing=raw", "udp,framing=raw"),
        ] {
            let error = text.parse::<DeviceName>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
