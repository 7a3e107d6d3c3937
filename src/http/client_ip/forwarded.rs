//! The `Forwarded` header (RFC 7239).
//!
//! ```text
//! Forwarded         = 1#forwarded-element
//! forwarded-element = [ forwarded-pair ] *( ";" [ forwarded-pair ] )
//! forwarded-pair    = token "=" ( token / quoted-string )
//! ```
//!
//! Whitespace is accepted around `,` and `;`. A line that does not follow the grammar is rejected
//! as a whole, because a client that leaves a quote open must not change what later elements mean.

use std::borrow::Cow;
use std::net::IpAddr;

use super::address;

/// The addresses of the `for` parameters of a line, one for each element that is not empty. `None`
/// where an element has none, more than one, or one that is not an address. Returns `None` if the
/// line does not follow the grammar.
pub(super) fn elements(line: &[u8]) -> Option<Vec<Option<IpAddr>>> {
    let mut parser = Parser { rest: line };
    let mut elements = Vec::new();
    loop {
        parser.element(&mut elements)?;
        if parser.is_at_end() {
            return Some(elements);
        }
        parser.take(b',')?;
    }
}

struct Parser<'a> {
    rest: &'a [u8],
}

impl<'a> Parser<'a> {
    fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    fn skip_whitespace(&mut self) {
        while let [b' ' | b'\t', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        self.rest = self.rest.strip_prefix(&[byte])?;
        Some(())
    }

    /// Parses an element, and adds its address. Returns `None` on a syntax error.
    fn element(&mut self, elements: &mut Vec<Option<IpAddr>>) -> Option<()> {
        let mut is_empty = true;
        let mut addresses = Vec::new();
        loop {
            self.skip_whitespace();
            if !matches!(self.rest, [] | [b',' | b';', ..]) {
                let (name, value) = self.pair()?;
                is_empty = false;
                if name.eq_ignore_ascii_case(b"for") {
                    addresses.push(address::parse(&value));
                }
                self.skip_whitespace();
            }
            if self.take(b';').is_none() {
                break;
            }
        }
        if !is_empty {
            elements.push(if let [only] = *addresses { only } else { None });
        }
        Some(())
    }

    fn pair(&mut self) -> Option<(&'a [u8], Cow<'a, [u8]>)> {
        let name = self.token()?;
        self.take(b'=')?;
        let value = match self.rest {
            [b'"', ..] => self.quoted_string()?,
            _ => Cow::Borrowed(self.token()?),
        };
        Some((name, value))
    }

    fn token(&mut self) -> Option<&'a [u8]> {
        let end = self
            .rest
            .iter()
            .position(|&byte| !is_token(byte))
            .unwrap_or(self.rest.len());
        let (token, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!token.is_empty()).then_some(token)
    }

    fn quoted_string(&mut self) -> Option<Cow<'a, [u8]>> {
        self.take(b'"')?;
        let mut value = Vec::new();
        loop {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            match byte {
                b'"' => return Some(Cow::Owned(value)),
                b'\\' => {
                    let (&escaped, rest) = self.rest.split_first()?;
                    self.rest = rest;
                    value.push(escaped);
                }
                byte => value.push(byte),
            }
        }
    }
}

/// The characters of a token (RFC 9110, 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
