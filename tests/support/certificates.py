"""Certificates for tests: a CA, and what it signs; elliptic curves, which are made in a millisecond."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = dt.timedelta(days=1)


def _name_of(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """A CA of its own, whose certificates stand in a folder: NAME.pem and NAME.key."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self.file = folder / "ca.pem"
        signed = self._signed("CA", self._key, x509.BasicConstraints(ca=True, path_length=None))
        self.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *hosts: str, days: int = 2, password: str = "") -> tuple[Path, Path]:
        """Make a certificate for names and addresses; return its file and that of its key.

        Args:
            name: of the files.
            hosts: names and addresses for which it is.
            days: until it ends; below 0 it has ended.
            password: of the key; empty: it has none.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        listed = x509.SubjectAlternativeName([_host(each) for each in hosts or (name,)])
        pem, secret = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        pem.write_bytes(self._signed(name, key, listed, days).public_bytes(serialization.Encoding.PEM))
        locked = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, locked))
        return pem, secret

    def _signed(self, name: str, key: ec.EllipticCurvePrivateKey, extension, days: int = 2) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        made = x509.CertificateBuilder().subject_name(_name_of(name)).issuer_name(_name_of("CA"))
        made = made.public_key(key.public_key()).serial_number(x509.random_serial_number())
        made = made.not_valid_before(now - 5 * DAY).not_valid_after(now + days * DAY)
        return made.add_extension(extension, critical=False).sign(self._key, hashes.SHA256())


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
