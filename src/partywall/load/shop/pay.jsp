<%@ page contentType="text/html; charset=UTF-8" import="java.util.*" %><%
    @SuppressWarnings("unchecked") List<Integer> cart = (List<Integer>) session.getAttribute("cart");
    String token = (String) session.getAttribute("token");
    if (cart == null || token == null || !token.equals(request.getParameter("token"))) {
        response.sendError(403, "the form's token is wrong");
        return;
    }
    int coins = 0;
    for (int id : cart) coins += id * 7;
    int count = cart.size();
    cart.clear();
%><!doctype html><title>Paid</title><p>Paid <%= coins %> coins for <%= count %> items.
