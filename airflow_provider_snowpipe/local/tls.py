"""Certificate authority and server certificate of the local service."""

from __future__ import annotations

import datetime as dt
import ipaddress

import certifi
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from airflow_provider_snowpipe.local.datadir import DataDirectory, write_file

_LIFETIME = dt.timedelta(days=825)
_RENEW_BEFORE = dt.timedelta(days=30)
# Hosts of clients that come through the CONNECT proxy: account, and account with the region of account
# identifiers. A wildcard stands for one label only, so each region needs its own.
_REGIONS = ("local", "us-east-1", "us-west-2", "eu-central-1", "eu-west-1")
_DNS_NAMES = (
    "localhost",
    "*.snowflakecomputing.com",
    *(f"*.{region}.snowflakecomputing.com" for region in _REGIONS),
)


def ensure_certificates(home: DataDirectory) -> None:
    """Create CA and server certificate on first start, and renew both shortly before they expire.

    :param home: data directory; writes ``tls/ca.pem``, ``tls/server.pem``, ``tls/server.key`` and the bundle.
    """
    server = home.tls_dir / "server.pem"
    if server.exists() and home.bundle_file.exists():
        certificate = x509.load_pem_x509_certificate(server.read_bytes())
        is_fresh = certificate.not_valid_after_utc - dt.datetime.now(dt.UTC) > _RENEW_BEFORE
        # A directory of an older version has a certificate without some of the names.
        if is_fresh and _names(certificate) >= set(_DNS_NAMES):
            return
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = _name("Snowpipe local CA")
    ca = _authority(ca_name, ca_key)
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = _leaf(ca_name, ca_key, key)
    write_file(
        home.tls_dir / "server.key",
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        mode=0o600,
    )
    ca_pem = ca.public_bytes(serialization.Encoding.PEM)
    write_file(home.authority_file, ca_pem, mode=0o600)
    with open(certifi.where(), "rb") as roots:
        write_file(home.bundle_file, roots.read() + b"\n" + ca_pem, mode=0o600)
    # Written last: its presence says that the other files are complete.
    write_file(server, leaf.public_bytes(serialization.Encoding.PEM) + ca_pem, mode=0o600)


def _names(certificate: x509.Certificate) -> set[str]:
    extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return set(extension.value.get_values_for_type(x509.DNSName))


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _authority(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip
    return (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _leaf(
    issuer: x509.Name, ca_key: ec.EllipticCurvePrivateKey, key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    names: list[x509.GeneralName] = [
        *(x509.DNSName(name) for name in _DNS_NAMES),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1")),
    ]
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    return (
        _builder(_name("127.0.0.1"), issuer, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(authority, critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        # An hour back: clocks of containers on one machine may differ.
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
    )
