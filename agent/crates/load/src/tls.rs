//! Verification of servers. Servers are verified by default against the host's authorities and those that the program names. If the
//! host has none (a container with an otherwise empty root), Mozilla's are used.

use std::io::Write;
use std::sync::Arc;

use partywall_wire::load::{Protocol, Tls};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::Resumption;
use rustls::crypto::{ring, verify_tls12_signature, verify_tls13_signature, CryptoProvider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::address::Place;

/// TLS sessions that one user keeps for resumption.
const SESSIONS: usize = 4;

/// TLS configuration shared by all users.
#[derive(Debug)]
pub(crate) struct Trust {
    config: Arc<ClientConfig>,
    resume: bool,
}

impl Trust {
    pub(crate) fn new(tls: &Tls, protocol: Protocol) -> Result<Self, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| error.to_string())?;
        let mut config = if tls.verify {
            builder.with_root_certificates(authorities(tls.authorities_pem.as_deref())?).with_no_client_auth()
        } else {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Anyone(provider))).with_no_client_auth()
        };
        config.resumption = Resumption::disabled();
        let offered: &[&[u8]] = match protocol {
            Protocol::Http1 => &[b"http/1.1"],
            Protocol::Http2 => &[b"h2"],
            Protocol::Negotiated => &[b"h2", b"http/1.1"],
        };
        config.alpn_protocols = offered.iter().map(|name| name.to_vec()).collect();
        Ok(Self { config: Arc::new(config), resume: tls.resume })
    }

    /// One user's configuration, with its own sessions, as in a browser.
    pub(crate) fn of_user(&self) -> Arc<ClientConfig> {
        if !self.resume {
            return self.config.clone();
        }
        let mut own = (*self.config).clone();
        own.resumption = Resumption::in_memory_sessions(SESSIONS);
        Arc::new(own)
    }
}

/// The client side of a connection to `place`, before the first byte.
pub(crate) fn connection(config: Arc<ClientConfig>, place: &Place) -> Result<Box<ClientConnection>, String> {
    let name = ServerName::try_from(place.host.clone())
        .map_err(|_| format!("{:?} cannot be a name in a certificate; use a host name or an IP address", place.host))?;
    let mut connection = ClientConnection::new(config, name).map_err(|error| error.to_string())?;
    // Requests are sent whole. The link buffers what the socket does not accept.
    connection.set_buffer_limit(None);
    Ok(Box::new(connection))
}

/// Encrypts `bytes` and returns the bytes to send.
pub(crate) fn seal(connection: &mut ClientConnection, bytes: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::new();
    // Writing to memory without a limit cannot fail.
    let _ = connection.writer().write_all(bytes);
    while connection.wants_write() {
        if connection.write_tls(&mut sealed).is_err() {
            break;
        }
    }
    sealed
}

/// The reason why a certificate is not trusted, and a remedy.
pub(crate) fn not_trusted(why: &CertificateError, place: &Place) -> String {
    use CertificateError as Why;
    let (what, remedy) = match why {
        Why::UnknownIssuer => ("its authority is not trusted on this host".into(), "add that authority's certificate"),
        Why::Expired | Why::ExpiredContext { .. } => (format!("it has expired: {why}"), "renew it"),
        Why::NotValidYet | Why::NotValidYetContext { .. } => (format!("it is not valid yet: {why}"), "check both clocks"),
        Why::NotValidForName | Why::NotValidForNameContext { .. } => {
            (format!("it does not contain the name {:?}: {why}", place.host), "use a name that it contains")
        }
        Why::Revoked => ("it was revoked".into(), "renew it"),
        // The error type is private to the library's verifier, so only its text identifies it.
        why if why.to_string().contains("CaUsedAsEndEntity") => (
            "it is the certificate of an authority, not of a server".into(),
            "create one for the server: openssl req -x509 … -addext basicConstraints=critical,CA:FALSE",
        ),
        why => (why.to_string(), "inspect it with openssl s_client"),
    };
    format!("its certificate is not trusted, because {what}; {remedy}, or switch verification off")
}

/// Whether the handshake negotiated HTTP/2.
pub(crate) fn agreed_on_http2(connection: &ClientConnection) -> bool {
    connection.alpn_protocol() == Some(b"h2")
}

/// TLS version, for example `TLS 1.3`.
pub(crate) fn version(connection: &ClientConnection) -> &'static str {
    match connection.protocol_version() {
        Some(rustls::ProtocolVersion::TLSv1_3) => "TLS 1.3",
        Some(rustls::ProtocolVersion::TLSv1_2) => "TLS 1.2",
        _ => "TLS",
    }
}

fn authorities(pem: Option<&str>) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if store.is_empty() {
        store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    let Some(pem) = pem else { return Ok(store) };
    let mut count = 0;
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|error| format!("tls.authorities_pem: {error}"))?;
        store.add(certificate).map_err(|error| format!("tls.authorities_pem: {error}"))?;
        count += 1;
    }
    if count == 0 {
        return Err("tls.authorities_pem contains no certificate; give certificates in PEM".into());
    }
    Ok(store)
}

/// Accepts any certificate, only if the user requested that. Signatures are still checked, because skipping them gains nothing.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
