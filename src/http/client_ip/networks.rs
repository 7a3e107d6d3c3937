//! Sets of networks: trusted proxies, internal clients, forbidden clients.

use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use ipnet::{IpNet, Ipv4Net};

use crate::units::ConfigError;

/// The bits before the IPv4 address in an IPv4-mapped IPv6 address.
const MAPPED_PREFIX: u8 = 96;

/// A set of networks that can be replaced while your service runs.
///
/// A clone is a handle on the same set. The default is empty. A string, and an array, a slice or a
/// vector of strings convert into a set with `TryFrom`. A network is written as `10.0.0.0/8` or
/// `fd00::/8`, and a single address as `10.0.0.1`. A network of IPv4-mapped addresses
/// (`::ffff:10.0.0.0/104`) is the IPv4 network.
///
/// ```
/// use tollgate::key::{ClientIp, Networks};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let proxies = Networks::new(["10.0.0.0/8", "fd00::/8"])?;
/// let client = ClientIp::behind(&proxies)?;
///
/// // Later, while your service runs: requests from now on are judged by the new set.
/// proxies.replace(["10.0.0.0/8", "192.0.2.0/24"])?;
/// # let _ = client;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Networks {
    /// Disjoint, in ascending order, IPv4 before IPv6.
    networks: Arc<ArcSwap<Vec<IpNet>>>,
}

impl Networks {
    /// Creates a set.
    ///
    /// # Errors
    ///
    /// Returns an error if a network is malformed or has bits beyond its prefix, or if together
    /// they contain every IPv4 or every IPv6 address. Such a set would trust every client.
    pub fn new<N: AsRef<str>>(networks: impl IntoIterator<Item = N>) -> Result<Self, ConfigError> {
        let networks: Result<Vec<_>, _> = networks
            .into_iter()
            .map(|network| parse(network.as_ref()))
            .collect();
        Self::from_networks(networks?)
    }

    /// Reads a set from a file with one network a line. Empty lines and text after a `#` are
    /// ignored.
    ///
    /// Vendors publish such lists, for example `https://www.cloudflare.com/ips-v4`. The crate
    /// contains none, because they change. When a list changes, you write a new file, rename it
    /// over the old one, read it again, and [replace](Self::replace) the set.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, has an invalid line, or has no networks.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|error| {
            ConfigError::new(format!(
                "cannot read the networks in `{}`: {error}",
                path.display()
            ))
        })?;
        let lines = text.lines().zip(1_u64..).map(|(line, number)| {
            let network = line
                .split_once('#')
                .map_or(line, |(network, _)| network)
                .trim();
            (network, number)
        });
        let networks: Result<Vec<_>, _> = lines
            .filter(|(network, _)| !network.is_empty())
            .map(|(network, number)| {
                parse(network).map_err(|error| {
                    ConfigError::new(format!("`{}`, line {number}: {error}", path.display()))
                })
            })
            .collect();
        let networks = networks?;
        if networks.is_empty() {
            // So is a file that is being written, or whose download failed.
            return Err(ConfigError::new(format!(
                "`{}` has no networks; write one to a line, or use `Networks::default()` for none",
                path.display()
            )));
        }
        Self::from_networks(networks)
            .map_err(|error| ConfigError::new(format!("`{}`: {error}", path.display())))
    }

    fn from_networks(networks: Vec<IpNet>) -> Result<Self, ConfigError> {
        let mut networks = IpNet::aggregate(&networks);
        networks.sort_unstable();
        if let Some(all) = networks.iter().find(|network| network.prefix_len() == 0) {
            let kind = match all {
                IpNet::V4(_) => "IPv4",
                IpNet::V6(_) => "IPv6",
            };
            return Err(ConfigError::new(format!(
                "the networks contain every {kind} address, and so every client; use smaller ones"
            )));
        }
        Ok(Self {
            networks: Arc::new(ArcSwap::from_pointee(networks)),
        })
    }

    /// Replaces the networks, in this handle and in all its clones. Each request is judged by the
    /// networks at its start. If you pass another handle, its networks are copied, and later
    /// changes of it have no effect.
    ///
    /// # Errors
    ///
    /// Returns an error if a network is invalid. The set keeps its networks then.
    pub fn replace(
        &self,
        networks: impl TryInto<Self, Error: Into<ConfigError>>,
    ) -> Result<(), ConfigError> {
        let other = networks.try_into().map_err(Into::into)?;
        self.networks.store(other.networks.load_full());
        Ok(())
    }

    /// Returns whether an address is in one of the networks. An IPv4 address is the same in its
    /// IPv6 notation.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        contain(&self.current(), address)
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.current().is_empty()
    }

    /// The networks as they are now, for all questions of one request.
    pub(super) fn current(&self) -> impl Deref<Target = Arc<Vec<IpNet>>> {
        self.networks.load()
    }
}

/// Returns whether an address is in one of these disjoint networks, which are in ascending order.
pub(super) fn contain(networks: &[IpNet], address: IpAddr) -> bool {
    let address = address.to_canonical();
    let place = networks.partition_point(|network| network.broadcast() < address);
    networks
        .get(place)
        .is_some_and(|network| network.contains(&address))
}

fn parse(text: &str) -> Result<IpNet, ConfigError> {
    let text = text.trim();
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(address.to_canonical().into());
    }
    let Ok(network) = text.parse::<IpNet>() else {
        return Err(ConfigError::new(format!(
            "`{}` is not a network; use a network such as `10.0.0.0/8` or `fd00::/8`, or an \
             address",
            text.escape_debug()
        )));
    };
    if network.addr() != network.network() {
        return Err(ConfigError::new(format!(
            "`{network}` has bits beyond its prefix; use `{}` for the network, or `{}` for the \
             address",
            network.trunc(),
            network.addr()
        )));
    }
    Ok(canonical(network))
}

/// The IPv4 network, if the network contains only IPv4-mapped addresses.
fn canonical(network: IpNet) -> IpNet {
    match (
        network.addr().to_canonical(),
        network.prefix_len().checked_sub(MAPPED_PREFIX),
    ) {
        (IpAddr::V4(address), Some(prefix)) if matches!(network, IpNet::V6(_)) => {
            Ipv4Net::new(address, prefix).map_or(network, IpNet::V4)
        }
        _ => network,
    }
}

impl From<&Self> for Networks {
    fn from(networks: &Self) -> Self {
        networks.clone()
    }
}

impl<N: AsRef<str>, const LENGTH: usize> TryFrom<[N; LENGTH]> for Networks {
    type Error = ConfigError;

    fn try_from(networks: [N; LENGTH]) -> Result<Self, ConfigError> {
        Self::new(networks)
    }
}

impl<N: AsRef<str>> TryFrom<&[N]> for Networks {
    type Error = ConfigError;

    fn try_from(networks: &[N]) -> Result<Self, ConfigError> {
        Self::new(networks)
    }
}

impl<N: AsRef<str>, const LENGTH: usize> TryFrom<&[N; LENGTH]> for Networks {
    type Error = ConfigError;

    fn try_from(networks: &[N; LENGTH]) -> Result<Self, ConfigError> {
        Self::new(networks)
    }
}

/// One network.
impl TryFrom<&str> for Networks {
    type Error = ConfigError;

    fn try_from(network: &str) -> Result<Self, ConfigError> {
        Self::new([network])
    }
}

impl<N: AsRef<str>> TryFrom<&Vec<N>> for Networks {
    type Error = ConfigError;

    fn try_from(networks: &Vec<N>) -> Result<Self, ConfigError> {
        Self::new(networks)
    }
}

impl<N: AsRef<str>> TryFrom<Vec<N>> for Networks {
    type Error = ConfigError;

    fn try_from(networks: Vec<N>) -> Result<Self, ConfigError> {
        Self::new(networks)
    }
}

impl fmt::Debug for Networks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.current().iter()).finish()
    }
}
