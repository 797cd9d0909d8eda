"""The small company the sandbox starts with: accounts, items on sale, discount tiers and people.

Decides nothing; it is the seed that a fresh or reset CRM is filled from. A change here changes
totals that tests and screenshots show.
"""

from typing import Any, Final

Json = dict[str, Any]
"""A JSON object. Money in it is a string with two decimals, never a float."""

CURRENCY: Final = "USD"
FIRST_QUOTE: Final = 1042
VALID_DAYS: Final = 30

TIERS: Final[dict[str, str]] = {"standard": "0", "silver": "5", "gold": "10", "platinum": "15"}
"""Discount in percent, by tier."""

RITA: Final = "rita.reyes@northwind.example"
MARCUS: Final = "marcus.hale@northwind.example"
VERA: Final = "vera.lindqvist@northwind.example"
OSKAR: Final = "oskar.ops@northwind.example"

ROLES: Final[dict[str, tuple[str, ...]]] = {
    "viewer": ("accounts.read", "prices.read", "quotes.read"),
    "inside_sales": (
        "accounts.read",
        "prices.read",
        "quotes.read",
        "quotes.draft",
        "quotes.send",
    ),
    "manager": (
        "accounts.read",
        "prices.read",
        "quotes.read",
        "quotes.draft",
        "quotes.send",
        "quotes.approve",
    ),
}
"""What a role may do unless a person was given permissions of their own."""

_ACCOUNTS: Final = (
    # id, name, tier, owner, contact, contact's email, city
    ("4471", "Henderson Manufacturing", "gold", RITA, "Dana Whitfield", "buying@henderson-mfg.example", "Dayton, OH"),
    ("4472", "Baker Steel Works", "silver", RITA, "Tom Baker", "orders@bakersteel.example", "Gary, IN"),
    ("4475", "Baker & Sons Foundry", "standard", MARCUS, "Ellen Baker", "ellen@bakerfoundry.example", "Allentown, PA"),
    ("4480", "Castillo Packaging", "platinum", RITA, "Luis Castillo", "luis@castillopack.example", "Laredo, TX"),
    ("4483", "Dunmore Hydraulics", "gold", MARCUS, "Siobhan Dunmore", "buying@dunmore.example", "Duluth, MN"),
    ("4490", "Eastgate Food Machinery", "silver", MARCUS, "Priya Nair", "priya@eastgatefood.example", "Fresno, CA"),
    ("4496", "Fairbanks Rail Services", "standard", RITA, "Owen Clarke", "stores@fairbanksrail.example", "Omaha, NE"),
    ("4502", "Granite Ridge Mining", "platinum", MARCUS, "Hannah Voss", "supply@graniteridge.example", "Elko, NV"),
    ("4507", "Ironwood Cranes", "silver", RITA, "Pete Larsen", "pete@ironwoodcranes.example", "Tacoma, WA"),
    ("4511", "Juniper Water Systems", "standard", MARCUS, "Aisha Rahman", "aisha@juniperwater.example", "Tucson, AZ"),
    ("4518", "Kestrel Aerospace", "gold", RITA, "Martin Cho", "mro@kestrelaero.example", "Wichita, KS"),
    ("4523", "Lakeshore Marine Repair", "standard", MARCUS, "Greta Olsen", "yard@lakeshoremarine.example", "Erie, PA"),
    ("4530", "Mesa Verde Breweries", "silver", RITA, "Carlos Medina", "plant@mesaverdebrew.example", "Durango, CO"),
)  # fmt: skip

_HOLDS: Final = {"4523": ("invoice 88213 is 62 days overdue", "2025-03-04")}

_SKUS: Final = (
    # sku, name, unit price, least quantity, stock
    ("SKU-4411", "Hydraulic coupling 1/2 in", "48.50", 10, 1840),
    ("SKU-4412", "Hydraulic coupling 3/4 in", "61.20", 10, 920),
    ("SKU-4413", "Hydraulic coupling 1 in", "79.90", 10, 415),
    ("SKU-4420", "High pressure hose, per metre", "14.75", 25, 6200),
    ("SKU-4421", "Low pressure hose, per metre", "8.10", 25, 7400),
    ("SKU-4430", "Gear pump 16 cc", "412.00", 1, 64),
    ("SKU-4431", "Gear pump 25 cc", "538.00", 1, 38),
    ("SKU-4440", "Pressure relief valve", "96.40", 5, 310),
    ("SKU-4441", "Directional valve 4/3, 24 V", "268.00", 1, 122),
    ("SKU-4450", "Return line filter 10 micron", "37.25", 6, 540),
    ("SKU-4451", "Filter element 10 micron", "12.90", 12, 2100),
    ("SKU-4460", "Cylinder 50/28, stroke 400", "345.00", 1, 47),
    ("SKU-4461", "Cylinder 63/36, stroke 500", "467.50", 1, 29),
    ("SKU-4470", "O-ring kit, 382 pieces", "28.60", 1, 260),
    ("SKU-4480", "Pressure gauge 0-250 bar", "22.35", 4, 480),
    ("SKU-4481", "Pressure sensor 4-20 mA", "134.00", 1, 96),
    ("SKU-4490", "Hydraulic oil HLP 46, 20 l", "89.00", 2, 350),
    ("SKU-4491", "Hydraulic oil HLP 46, 208 l", "790.00", 1, 26),
    ("SKU-4500", "Power unit 5.5 kW", "3280.00", 1, 7),
    ("SKU-4501", "Power unit 11 kW", "4950.00", 1, 4),
    ("SKU-4510", "Oil cooler 12 V", "318.00", 1, 33),
)

_PEOPLE: Final = (
    (RITA, "Rita Reyes", "inside_sales"),
    (MARCUS, "Marcus Hale", "manager"),
    (VERA, "Vera Lindqvist", "viewer"),
    (OSKAR, "Oskar Ops", "viewer"),
)


def accounts() -> list[Json]:
    """Return the accounts, each as a fresh object: credit_hold is null or {reason, since}."""
    seeded: list[Json] = []
    for number, name, tier, owner, contact, email, city in _ACCOUNTS:
        hold = _HOLDS.get(number)
        seeded.append(
            {
                "id": number,
                "name": name,
                "city": city,
                "tier": tier,
                "owner": owner,
                "currency": CURRENCY,
                "contact": {"name": contact, "email": email},
                "credit_hold": {"reason": hold[0], "since": hold[1]} if hold else None,
            }
        )
    return seeded


def skus() -> list[Json]:
    """Return the items on sale: unit_price as a string, minimum_quantity and stock as integers."""
    return [
        {
            "sku": sku,
            "name": name,
            "unit_price": price,
            "currency": CURRENCY,
            "minimum_quantity": least,
            "stock": stock,
        }
        for sku, name, price, least, stock in _SKUS
    ]


def people() -> list[Json]:
    """Return the directory: inside sales have the accounts they own, everyone else all of them."""
    seeded: list[Json] = []
    for email, name, role in _PEOPLE:
        own = [row[0] for row in _ACCOUNTS if row[3] == email]
        seeded.append(
            {
                "email": email,
                "name": name,
                "role": role,
                "permissions": sorted(ROLES[role]),
                "accounts": own if role == "inside_sales" else ["*"],
            }
        )
    return seeded
