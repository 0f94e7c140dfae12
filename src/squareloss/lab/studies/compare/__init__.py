"""The study behind `squareloss compare`: what is compared, on what data, trained how, and measured how."""
