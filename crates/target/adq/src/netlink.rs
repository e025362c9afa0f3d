//! Netlink: requests and answers as bytes, and a blocking socket that exchanges them.

pub mod dcb;
pub mod ethtool;
pub mod filter;
pub mod link;
pub mod message;
pub mod netdev;
pub mod qdisc;
pub mod socket;
